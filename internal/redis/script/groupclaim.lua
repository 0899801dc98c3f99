-- Claim what another owner's release has granted: extend the entry to the whole TTL, and return its counter. A
-- claim that comes too late gets nothing, because others may have it, or may take it at any time.
--
-- KEYS: 1 group  2 entries      (one hash slot)
-- ARGV: 1 "|owner|1|label", see value.lua  2 TTL in ms
--       guarded: 2 "ttl:guard", see guard.lua, and the key 3 marker
-- reply: {1, counter, what is left in ms, what}
--        | {0} not this owner's: it waits on, with the same ticket
--        | {-3, ms}, {-4, guard}, {-5, 0}: see guard.lua
-- include groupentry.lua
-- if guarded: -- include guard.lua
group, entries = KEYS[1], KEYS[2]
local o, t, ttl = string.match(ARGV[1], '^|([^|]*)|'), redis.call('TIME'), ARGV[2]
local now = t[1] * 1000000 + t[2]
-- if guarded: marker, ttl, guard = KEYS[3], string.match(ttl, '^(%d+):(%d+)$')
local till = tonumber(redis.call('ZSCORE', group, o) or '0')
local c, has = entry(o)
if not c or till <= now then return {0} end
-- if guarded: local rests = resting(now)    -- as in claim.lua
-- if guarded: if rests then return rests end
till = math.max(till, now + ttl * 1000)
local longer = outlive(till, now)              -- as in groupextend.lua
redis.call('ZADD', group, 'XX', string.format('%.0f', till), o)
if longer then redis.call('HSET', entries, '', state()) end
return {1, tonumber(c), math.floor((till - now) / 1000), has}
