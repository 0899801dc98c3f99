-- Extend an entry of a group. This never creates one, and never shortens its life. With a TTL of 0, it only says
-- whether the entry is still there.
--
-- KEYS: 1 group  2 entries      (one hash slot)
-- ARGV: 1 "|owner|1|label", see value.lua  2 TTL in ms  3 counter of this lease, with 16 digits
-- reply: 1 extended, plus 16 if the group is marked: somebody waits, or has waited
--        | 0 this owner has nothing | 3 another acquisition of this owner was executed since
-- include groupentry.lua
group, entries = KEYS[1], KEYS[2]
local o, t = string.match(ARGV[1], '^|([^|]*)|'), redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local till = redis.pcall('ZSCORE', group, o)
if type(till) == 'table' then return string.find(till.err, 'WRONGTYPE', 1, true) and 0 or till end
till = tonumber(till or '0')
local c = entry(o)
if not c or till <= now then return 0 end
if c ~= ARGV[3] then return 3 end
local to = math.max(till, now + ARGV[2] * 1000)
-- Replicas may lack an earlier extension by more than this one, so that there is a write in any case. It comes first:
-- a server that is out of memory accepts ZADD only after another write.
local longer = outlive(to, now)
redis.call('ZADD', group, 'XX', string.format('%.0f', to), o)
if longer then redis.call('HSET', entries, '', state()) end
return marked == '+' and 17 or 1
