-- Claim a lock that another owner's release has granted: extend it to the whole TTL, and return the token.
--
-- KEYS: 1 lock  2 fencing counter      (one hash slot)
-- ARGV: 1 "TTL in ms:owner"
-- reply: {1, counter, PTTL} | {0} not this owner's: it waits on, with the same ticket
local ttl, o = string.match(ARGV[1], '^(%d+):(.*)$')
local got = redis.call('MGET', KEYS[1], KEYS[2])
if got[1] ~= o then return {0} end
-- The owner is not in the queue. The release that granted the lock has removed it, and its heartbeats find the grant.
local left = redis.call('PTTL', KEYS[1])
ttl = tonumber(ttl)
if left < ttl then
  redis.call('PEXPIRE', KEYS[1], ttl)
  left = ttl
end
local token = tonumber(got[2] or '0') or 0
if token == 0 then                             -- the counter was lost meanwhile
-- include mint.lua
  fence = KEYS[2]
  token = mint()
end
return {1, token, left}
