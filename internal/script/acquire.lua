-- One attempt to take a lock; idempotent for its owner. Redis 5 or newer (TIME before a write).
--
-- KEYS: 1 lock  2 fencing counter  3 tombstone of this attempt        (one hash slot)
-- ARGV: 1 owner, unique to this attempt, see alias.lua  2 TTL in ms  3 quantum in us: the clock is rounded down to it
--       4 hint: a counter seen on another node, "0" = none
-- (Ten words with EVALSHA: of a client that has not authenticated, Redis takes no more, and "NOAUTH" would become
-- "unauthenticated multibulk length".)
-- reply: counter: granted | {0, PTTL, counter, begin of the owner} held by another
--        | -1 this attempt was given up before it arrived | -2 the key holds something that is not a lock
--        | -2-k this attempt has the lock already, as its node k
-- (An array costs the server and the clients more than a number does.)
local keep = '86400000'                        -- how long the counter outlives its use, in ms; see counterKeep
local got = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
local cur, f = got[1], tonumber(got[2] or '0') or 0
if cur and cur ~= ARGV[1] then
  local left = redis.call('PTTL', KEYS[1])
  if left == -1 then return -2 end
-- include alias.lua
  local k = alias(cur, ARGV[1])
  if k > 0 then return -2 - k end
  return {0, left, f, string.sub(cur, 1, 8)}
end
if cur and f > 0 then return f end            -- delivered a second time: neither a new token nor a new TTL
if got[3] then return -1 end
-- The counter follows the clock: greater than the last one by counting, and greater than all before it, should it
-- have been lost, by the clock. Nodes whose clocks are nearly right agree by the quantum, those that have drifted apart
-- by the hint. Below 2^53 until the year 2255, so exact in Lua and as an integer reply; the text comes from
-- string.format because tostring rounds to 14 digits.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local hint = tonumber(ARGV[4])
if hint > now + 3600000000 then hint = 0 end  -- not one that would leave the clock behind for ever
local c = math.max(f + 1, now - now % tonumber(ARGV[3]), hint + 1)
-- The first write: refused as a whole when out of memory. The counter does not expire before the clock has passed its
-- value: one that starts anew cannot go back.
local px = keep
if c > now then px = string.format('%.0f', math.floor((c - now) / 1000) + keep) end
redis.call('SET', KEYS[2], string.format('%.0f', c), 'PX', px)
if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], cur and 'XX' or 'NX') then
  return -2                                    -- not a string: MGET does not tell that from nothing
end
return c
