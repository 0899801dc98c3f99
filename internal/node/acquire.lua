-- One attempt to take a lock; idempotent for its owner. Redis 5 or newer (TIME before a write).
--
-- KEYS: 1 lock  2 fencing counter  3 tombstone of this attempt        (one hash slot)
-- ARGV: 1 owner, unique to this attempt  2 TTL in ms  3 how long the counter outlives its use, in ms
-- reply: {1, token} granted | {0, PTTL} held by another | {-1, 0} this attempt was given up before it arrived
--        | {-2, 0} the key holds something that is not a lock
local cur = redis.pcall('GET', KEYS[1])
if type(cur) == 'table' then
  if string.find(cur.err, 'WRONGTYPE', 1, true) then return {-2, 0} end
  return cur
end
if cur and cur ~= ARGV[1] then
  local left = redis.call('PTTL', KEYS[1])
  if left == -1 then return {-2, 0} end
  return {0, left}
end
if cur then                                   -- delivered a second time: neither a new token nor a new TTL
  local f = redis.call('GET', KEYS[2])
  if f then return {1, tonumber(f)} end
end
if redis.call('EXISTS', KEYS[3]) == 1 then return {-1, 0} end
-- The token is a counter that follows the clock in microseconds: greater than the last one by the counter, and greater
-- than all before it, should the counter be lost, by the clock. Below 2^53 until the year 2255, so exact in Lua and
-- as an integer reply; the text comes from string.format because tostring rounds to 14 digits.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local c = math.max((tonumber(redis.call('GET', KEYS[2]) or '0') or 0) + 1, now)
redis.call('SET', KEYS[2], string.format('%.0f', c))    -- the first write: refused as a whole when out of memory
-- not before the clock has passed the counter's value: a counter that starts anew cannot go back
redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', math.floor(c / 1000) + ARGV[3]))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, c}
