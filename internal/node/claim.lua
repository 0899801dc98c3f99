-- Come for a lock that somebody else has granted: prolong it to the whole TTL and learn the token.
--
-- KEYS: 1 lock  2 fencing counter  3 queue  4 waiters      (one hash slot)
-- ARGV: 1 owner  2 TTL in ms
-- reply: {1, counter, PTTL} | {0} not yours (any more): go on waiting, with the same ticket
local got = redis.call('MGET', KEYS[1], KEYS[2])
if got[1] ~= ARGV[1] then return {0} end
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1])
local left, ttl = redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])
if left < ttl then
  redis.call('PEXPIRE', KEYS[1], ttl)
  left = ttl
end
local token = tonumber(got[2] or '0') or 0
if token == 0 then                             -- the counter was lost since
-- include mint.lua
  fence = KEYS[2]
  token = mint()
end
return {1, token, left}
