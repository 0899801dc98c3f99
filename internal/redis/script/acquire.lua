-- One attempt to acquire a lock. It is idempotent for its owner. It needs Redis 5 or newer (TIME before a write).
--
-- KEYS: 1 lock  2 waiters and tombstones  3 fencing counter        (one hash slot)
-- ARGV: 1 "|owner|node|label", see value.lua; the owner is unique to this attempt
--       2 TTL in ms
--       3 quantum in us, see mint.lua
--       4 hint: a counter seen on another node, "0" = none
--       guarded: 3 "quantum:hint:guard", see guard.lua, and the key 4 marker
--       for several tokens, their number after another colon in the last; it is the same for all attempts of the owner
-- reply: counter: granted, with the tokens from the counter on
--        | {0, PTTL, counter, first bytes of the owner, label}: another owner has the lock
--        | -1: this attempt was released before it was executed
--        | -2: the key holds something that is not a lock
--        | -2-k: this attempt has the lock here already, as its node k
--        | {-3, ms}, {-4, guard}, {-5, 0}: see guard.lua
--
-- With EVALSHA, the command has ten words. Redis accepts no more from a client that has not authenticated: the error
-- would be "unauthenticated multibulk length" instead of NOAUTH.
-- include value.lua
local got = redis.call('MGET', KEYS[1], KEYS[3])
local cur = got[1]
if cur then
  local c, k = mine(cur, ARGV[1])
  if c then return tonumber(c) end             -- delivered twice: the token and the TTL stay
  local left = redis.call('PTTL', KEYS[1])
  if left == -1 then return -2 end
  if k > 0 then return -2 - k end
  local o, label = parts(cur)
  return {0, left, tonumber(got[2] or '0') or 0, string.sub(o or cur, 1, 8), label or ''}
end
-- include tombstone.lua
-- include mint.lua
local mark = ''
if redis.call('EXISTS', KEYS[2]) == 1 then
  if buried(KEYS[2], string.match(ARGV[1], '^|([^|]*)|')) then return -1 end
  mark = '+'                                   -- somebody may wait
end
local quantum, hint, n = ARGV[3], string.match(ARGV[4] or '', '^(%d+):?(%d*)$')
-- if guarded: -- include guard.lua
-- if guarded: marker = KEYS[4]
-- if guarded: quantum, hint, guard, n = string.match(quantum, '^(%d+):(%d+):(%d+):?(%d*)$')
-- if guarded: local rests = resting(clock())
-- if guarded: if rests then return rests end
fence = KEYS[3]
local c = mint(tonumber(quantum), tonumber(hint), got[2], tonumber(n))
if not redis.call('SET', KEYS[1], c .. ARGV[1] .. mark, 'PX', ARGV[2], 'NX') then
  return -2                                    -- not a string: MGET returns nil for it, as for no key
end
return tonumber(c)
