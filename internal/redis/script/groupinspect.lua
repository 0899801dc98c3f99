-- Return the state of a group: of the entry whose time is over first. This changes nothing.
--
-- KEYS: 1 group  2 fencing counter  3 entries  4 waiters and tombstones  5 queue      (one hash slot)
-- ARGV: 1 what the owner begins with, to find another entry  2 how many waiters are counted at most. With 1, nothing
--         else is looked at, and only those count that may have to wait for the owner 1, which asks
-- reply: as that of inspect.lua, and {ms that are left, what the owner has, value, ...} of all entries, the first that
--        ends first. A value is as if the owner had a lock
-- include groupentry.lua
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local waiting, own = 0, nil
if ARGV[2] == '1' then own = string.match(redis.call('HGET', KEYS[3], ARGV[1]) or '', '^%d+|([^|]*)|') or '' end
local all = redis.call('ZRANGE', KEYS[5], 0, -1, 'WITHSCORES')
for i = 1, #all, 2 do
  if own == 's' and all[i + 1] + 0 > 2^52 then break end    -- the rest wait for an upgradeable lock
  local deadline, n, weight = string.match(redis.call('HGET', KEYS[4], all[i]) or '', '^(%d+):%d+:[^|]*|(%w+):([^:]*):')
  if deadline and tonumber(deadline) * 1000 >= now and not (own and not in_way(own, ARGV[1], n, weight)) then
    waiting = waiting + 1
  end
  if waiting == tonumber(ARGV[2]) then break end
end
if own then return {0, -2, 0, waiting, now, '', {}} end
local counter = tonumber(redis.call('GET', KEYS[2]) or '0') or 0
all = redis.pcall('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
if all.err then
  if not string.find(all.err, 'WRONGTYPE', 1, true) then return all end
  return {2, -1, counter, waiting, now, '', {}}
end
if all[1] and redis.call('PTTL', KEYS[1]) == -1 then return {2, -1, counter, waiting, now, '', {}} end
local out, found = {}, {0, -2, ''}
for i = 1, #all, 2 do
  local till, o = tonumber(all[i + 1]), all[i]
  local c, has, label = string.match(redis.call('HGET', KEYS[3], o) or '', '^(%d+)|([^|]*)|(.*)$')
  if c and till > now then
    local kept = string.match(o, '^hold:(.*)$')
    local left, value = math.ceil((till - now) / 1000), kept and o or c .. '|' .. o .. '|1|' .. label
    if found[1] == 0 and string.sub(kept or o, 1, #ARGV[1]) == ARGV[1] then found = {1, left, value} end
    out[#out + 1], out[#out + 2], out[#out + 3] = left, has, value
  end
end
return {found[1], found[2], counter, waiting, now, found[3], out}
