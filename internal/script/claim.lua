-- Claim a lock that another owner's release has granted: extend it to the whole TTL, and return the token.
--
-- KEYS: 1 lock
-- ARGV: 1 "|owner|1|label", see value.lua  2 TTL in ms
-- reply: {1, counter, PTTL} | {0} not this owner's: it waits on, with the same ticket
-- include value.lua
local c = mine(redis.call('MGET', KEYS[1])[1], ARGV[1])
if not c then return {0} end
-- The owner is not in the queue. The release that granted the lock has removed it, and its heartbeats find the grant.
local left, ttl = redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])
if left < ttl then
  redis.call('PEXPIRE', KEYS[1], ttl)
  left = ttl
end
return {1, tonumber(c), left}
