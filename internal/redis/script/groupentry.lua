-- A group of permits has one state: entries. An entry is what one owner has, with one counter and one end.
--
-- A sorted set, which has the name of the group, has each owner by the end of its time in us. A hash has
-- "counter|numbers|label" for each owner, as "0000000000000007|0-9,15|web-7", and under the empty name the state: "life
-- in ms", "+" once somebody waits or else "-", and "1" for each number that is taken and "0" for others, as
-- "1764471788000-101". Either key is nothing without the other, and both live longer than the entries.
local group, entries                           -- keys; the including script sets them
local life, marked, taken = 0, '-', ''         -- the state

-- Reads the state, and returns the counter, the numbers and the label of o, or nil. Its time may be over.
local function entry(o)
  local t, m, s = string.match(redis.call('HGET', entries, '') or '', '^(%d+)([+-])([01]*)$')
  if t then life, marked, taken = tonumber(t), m, s end
  return string.match(redis.call('HGET', entries, o) or '', '^(%d+)|([^|]*)|(.*)$')
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
