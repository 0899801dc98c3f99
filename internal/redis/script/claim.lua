-- Claim a lock that another owner's release has granted: extend it to the whole TTL, and return the token.
--
-- A waiter relies on the lock only now. So a server that rests refuses, although it has granted the lock: its data may
-- be old, and another client may have had the lock since.
--
-- KEYS: 1 lock
-- ARGV: 1 "|owner|1|label", see value.lua  2 TTL in ms
--       guarded: 2 "ttl:guard", see guard.lua, and the key 2 marker
--       for several tokens, their number after another colon in 2, and the fencing counter as the last key
-- reply: {1, counter, PTTL}, for several tokens {1, counter, PTTL, how many from the counter on}
--        | {0} not this owner's: it waits on, with the same ticket
--        | {-3, ms}, {-4, guard}, {-5, 0}: see guard.lua
-- include value.lua
-- include digits.lua
-- if guarded: -- include guard.lua

-- Raises the counter of the slot to the last of n tokens from c on, if it is lower. Returns n, or 1 if the counter
-- cannot be raised. Nobody was granted the lock since c was drawn, because c is still in the value. So nobody has a
-- token of the lock that is past c. Other locks of the slot may have passed it, which does not matter.
local function block(fence, c, n)
  local last, to = redis.pcall('GET', fence), c + (n - 1)
  if type(last) == 'table' or not (to < 2^53) then return 1 end
  last = tonumber(last or '0') or 0
  if not (last >= to and last < 2^53) and redis.pcall('SET', fence, digits(to)).err then return 1 end
  return n
end

local c = mine(redis.call('MGET', KEYS[1])[1], ARGV[1])
if not c then return {0} end
local ttl, n = string.match(ARGV[2], '^(%d+):?(%d*)$')
-- if guarded: marker, ttl, guard, n = KEYS[2], string.match(ARGV[2], '^(%d+):(%d+):?(%d*)$')
-- if guarded: local t = redis.call('TIME')
-- if guarded: local rests = resting(t[1] * 1000000 + t[2])
-- if guarded: if rests then return rests end
-- The owner is not in the queue. The release that granted the lock has removed it, and its heartbeats find the grant.
-- There is a write in any case: from Redis 7.2 on, WAIT waits for the last write of its own connection, and replicas
-- have to confirm the grant, too.
local left = math.max(redis.call('PTTL', KEYS[1]), tonumber(ttl))
-- The counter comes first. A server that is out of memory refuses it then, and the waiter has one token.
if n ~= '' then n = block(KEYS[#KEYS], tonumber(c), tonumber(n)) end
redis.call('PEXPIRE', KEYS[1], left)
if n == '' then return {1, tonumber(c), left} end
return {1, tonumber(c), left, n}
