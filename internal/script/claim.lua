-- Come for a lock that somebody else has granted: prolong it to the whole TTL and learn the token.
--
-- KEYS: 1 lock  2 fencing counter      (one hash slot)
-- ARGV: 1 "TTL in ms:owner"
-- reply: {1, counter, PTTL} | {0} not yours (any more): go on waiting, with the same ticket
local ttl, o = string.match(ARGV[1], '^(%d+):(.*)$')
local got = redis.call('MGET', KEYS[1], KEYS[2])
if got[1] ~= o then return {0} end
-- (It is not in the queue: whoever granted the lock took it out, and its heartbeats find it granted.)
local left = redis.call('PTTL', KEYS[1])
ttl = tonumber(ttl)
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
