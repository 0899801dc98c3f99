-- One attempt to acquire a lock. It is idempotent for its owner. It needs Redis 5 or newer (TIME before a write).
--
-- KEYS: 1 lock  2 fencing counter  3 tombstone of this attempt        (one hash slot)
-- ARGV: 1 owner, unique to this attempt, see alias.lua
--       2 TTL in ms
--       3 quantum in us: the clock is rounded down to a multiple of it
--       4 hint: a counter seen on another node, "0" = none
-- reply: counter: granted
--        | {0, PTTL, counter, first bytes of the owner}: another owner has the lock
--        | -1: this attempt was released before it was executed
--        | -2: the key holds something that is not a lock
--        | -2-k: this attempt has the lock here already, as its node k
--
-- With EVALSHA, the command has ten words. Redis accepts no more from a client that has not authenticated: the error
-- would be "unauthenticated multibulk length" instead of NOAUTH. A grant is a number, because an array costs the server
-- and the clients more.
local keep = '86400000'                        -- how long the counter outlives its last use, in ms; see counterKeep
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
if cur and f > 0 then return f end            -- delivered twice: the token and the TTL stay
if got[3] then return -1 end
-- The new counter is greater than the last one. If the last one was lost, the new one is greater than all before,
-- because it follows the clock. Nodes whose clocks are nearly right agree because of the quantum, and other nodes
-- because of the hint. The counter is below 2^53 until the year 2255, so it is exact in Lua and as an integer reply.
-- Its text comes from string.format, because tostring rounds to 14 digits.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local hint = tonumber(ARGV[4])
if hint > now + 3600000000 then hint = 0 end  -- too far ahead: the clock would not catch up
local c = math.max(f + 1, now - now % tonumber(ARGV[3]), hint + 1)
-- This is the first write, so the server refuses the whole script if it is out of memory. The counter does not expire
-- before the clock has passed its value, so a counter that starts again is never smaller.
local px = keep
if c > now then px = string.format('%.0f', math.floor((c - now) / 1000) + keep) end
redis.call('SET', KEYS[2], string.format('%.0f', c), 'PX', px)
if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], cur and 'XX' or 'NX') then
  return -2                                    -- not a string: MGET returns nil for it, as for no key
end
return c
