-- Fencing tokens. One counter serves all locks of a prefix in a hash slot. It never expires. It needs tombstone.lua.
-- include digits.lua
local fence                                    -- the counter's key; the including script sets it

-- Returns a token that is greater than the counter, and stores it as the counter. If the counter was lost, the token is
-- greater than all before, because it follows the clock. Nodes whose clocks are nearly right agree because of the
-- quantum, the number of us that the clock is rounded down to, and other nodes because of the hint, a counter that was
-- seen on another node. The token is below 2^53 until the year 2255, so it is exact in Lua and as an integer reply.
--
-- The SET is the first write of a script that grants. So the server refuses the whole script if it is out of memory.
--
-- known is the value of the counter, if the script has read it. A counter that is no number below 2^53 was overwritten
-- from outside. The next one then follows the clock again.
--
-- n is how many tokens there are to be, nil for one. The counter becomes the last of them, and mint returns the first.
local function mint(quantum, hint, known, n)
  n = n or 1
  local now, last = clock(), tonumber(known or redis.call('GET', fence) or '0') or 0
  if not (last < 2^53 - n) then last = 0 end   -- or nan
  if hint > now + 3600000000 then hint = 0 end -- too far ahead: the clock would not catch up
  local c = math.max(last + 1, now - now % quantum, hint + 1)
  local text = digits(c)
  redis.call('SET', fence, n == 1 and text or digits(c + (n - 1)))
  return text
end
