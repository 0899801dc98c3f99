-- A group of permits or of locks has one state: entries. An entry is what one owner has, with one counter and one end.
--
-- A sorted set, which has the name of the group, has each owner by the end of its time in us. A hash has
-- "counter|what|label" for each owner, as "0000000000000007|0-9,15|web-7". What it has are the numbers of permits, or
-- the kind of a lock: s for shared, u for upgradeable and x for exclusive. Under the empty name, the hash has the
-- state: "life in ms", "+" once somebody waits or else "-", and what is taken: "1" for each number that is taken and
-- "0" for others, as "1764471788000-101", or how many there are of each kind, as "1764471788000-2s1u0x". Either key is
-- nothing without the other, and both live longer than the entries.
local group, entries                           -- keys; the including script sets them
local life, marked, taken = 0, '-', ''         -- the state

-- Reads the state, and returns the counter of o, what it has, and its label, or nil. Its time may be over.
local function entry(o)
  local t, m, s = string.match(redis.call('HGET', entries, '') or '', '^(%d+)([+-])(%w*)$')
  if t then life, marked, taken = tonumber(t), m, s end
  return string.match(redis.call('HGET', entries, o) or '', '^(%d+)|([^|]*)|(.*)$')
end

-- Reports whether one that wants this may have to wait for owner, which has that. See groupqueue.lua for n and weight.
local function in_way(has, owner, n, weight)
  if string.find(n, '%a') then return owner ~= weight and (has == 'x' or n == 'x' or has == 'u' and n == 'u') end
  local low = string.match(has, '^%d+')
  return low ~= nil and low + 0 < n + 0
end

local function state() return string.format('%.0f', life) .. marked .. taken end

-- Makes both keys live until till at least, in us. They live for twice as long, so that this need not be done for each
-- entry. There is a write in any case, which the server does not refuse when it is out of memory.
local function outlive(till, now)
  local ms, at = math.ceil(till / 1000), math.floor(now / 1000)
  local longer = ms > life
  if longer then life = 2 * ms - at end
  redis.call('PEXPIRE', group, string.format('%.0f', life - at))
  if longer then redis.call('PEXPIRE', entries, string.format('%.0f', life - at)) end
  return longer
end
