-- Claim a lock that another owner's release has granted: extend it to the whole TTL, and return the token.
--
-- A waiter relies on the lock only now. So a server that rests refuses, although it has granted the lock: its data may
-- be old, and another client may have had the lock since.
--
-- KEYS: 1 lock
-- ARGV: 1 "|owner|1|label", see value.lua  2 TTL in ms
--       guarded: 2 "TTL:guard", see guard.lua, and the key 2 marker
-- reply: {1, counter, PTTL} | {0} not this owner's: it waits on, with the same ticket
--        | {-3, ms}, {-4, guard}, {-5, 0}: see guard.lua
-- include value.lua
-- if guarded: -- include guard.lua
local c = mine(redis.call('MGET', KEYS[1])[1], ARGV[1])
if not c then return {0} end
local ttl = ARGV[2]
-- if guarded: marker, ttl, guard = KEYS[2], string.match(ttl, '^(%d+):(%d+)$')
-- if guarded: local t = redis.call('TIME')
-- if guarded: local rests = resting(t[1] * 1000000 + t[2])
-- if guarded: if rests then return rests end
-- The owner is not in the queue. The release that granted the lock has removed it, and its heartbeats find the grant.
-- There is a write in any case: from Redis 7.2 on, WAIT waits for the last write of its own connection, and replicas
-- have to confirm the grant, too.
local left = math.max(redis.call('PTTL', KEYS[1]), tonumber(ttl))
redis.call('PEXPIRE', KEYS[1], left)
return {1, tonumber(c), left}
