-- The value of a Redlock's lock is "owner|number", with the number of this node among the owner's. Returns the number in cur if
-- cur is the lock of o's owner under another number than o's, else 0. If so, this server is two of the owner's nodes, or an
-- address has come to lead to it.
local function alias(cur, o)
  local own = string.match(o, '^.*|')
  return own and cur and cur ~= o and string.sub(cur, 1, #own) == own and tonumber(string.sub(cur, #own + 1)) or 0
end
