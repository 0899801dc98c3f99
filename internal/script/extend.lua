-- Extend a held lock. This never creates the key, and never shortens its life.
--
-- KEYS: 1 lock  2 fencing counter      (one hash slot)
-- ARGV: 1 owner  2 TTL in ms  3 token of this lease
-- reply: 1 extended | 0 nobody has the lock | 3 a newer token was issued | 4 another owner has the lock
--        | 32 k: this owner has the lock here as its node k
local keep = 86400000                          -- as in acquire.lua
local cur = redis.pcall('GET', KEYS[1])
if type(cur) == 'table' then return string.find(cur.err, 'WRONGTYPE', 1, true) and 4 or cur end
if cur ~= ARGV[1] then
-- include alias.lua
  local k = alias(cur, ARGV[1])
  if k > 0 then return 32 * k end
  return cur and cur ~= 'hold:' .. ARGV[1] and 4 or 0
end
local f, token = tonumber(redis.call('GET', KEYS[2]) or '0') or 0, tonumber(ARGV[3])
if f > token then return 3 end                -- another owner has had the lock meanwhile
-- The counter must not expire while the lock is held. Repairs use pcall and may fail, so that a lock can be extended
-- while the server is out of memory.
if f < token then
  -- The counter does not expire before the clock has passed its value; see acquire.lua.
  local t = redis.call('TIME')
  local ahead = math.max(0, math.floor((token - t[1] * 1000000 - t[2]) / 1000))
  redis.pcall('SET', KEYS[2], ARGV[3], 'PX', string.format('%.0f', ahead + keep))
end
if redis.call('PTTL', KEYS[2]) < keep then redis.call('PEXPIRE', KEYS[2], keep) end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
