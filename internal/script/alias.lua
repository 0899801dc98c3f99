-- The value of a lock on Redlock is "owner|number", with the number of this node in the owner's list. If cur has the
-- owner of o and another number, alias returns that number, else 0. This server then has two addresses in the owner's
-- list, or one of the addresses has moved to it.
local function alias(cur, o)
  local own = string.match(o, '^.*|')
  return own and cur and cur ~= o and string.sub(cur, 1, #own) == own and tonumber(string.sub(cur, #own + 1)) or 0
end
