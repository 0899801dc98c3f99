-- The value of a lock is "counter|owner|node|label", and "+" at its end once somebody waits for the lock. The counter
-- has 16 digits, so that it can be raised in place and compared as text. The node is the number of this node in the
-- owner's list of nodes. A command gives the part from the first bar on as text.

-- If v is the lock of the text's owner under the text's node, mine returns its counter. Otherwise it returns nil and
-- the number under which that owner has the lock here, or 0. This server then has two addresses in the owner's list, or
-- one of the addresses has moved to it.
local function mine(v, text)
  local own = string.match(text, '^|[^|]*|')
  if not v or string.sub(v, 17, 16 + #own) ~= own then return nil, 0 end
  local k = string.match(v, '^%d+', 17 + #own)
  if k == string.match(text, '^%d+', 1 + #own) then return string.sub(v, 1, 16), 0 end
  return nil, tonumber(k or '0')
end

-- Returns the owner, the label and the mark of a lock. Returns nil if v is not the value of a lock: another library's
-- value, or that of a lock that is kept after its release.
local function parts(v)
  local c, o, label, mark = string.match(v or '', '^(%d+)|([^|]*)|%d+|([^|+]*)(%+?)$')
  if c and #c == 16 then return o, label, mark end
end
