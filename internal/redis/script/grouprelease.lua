-- Return permits of a group, or leave its queue, and grant permits to those that wait.
--
-- KEYS: 1 group  2 fencing counter  3 entries  4 waiters and tombstones  5 queue      (one hash slot)
-- ARGV: 1 "|owner|1|label", see value.lua  2 "tomb:rest:token", see undo.lua
--       guarded: 2 "tomb:rest:token:guard", see guard.lua, and the key 6 marker
-- reply: 0 to 4, see undo.lua
--        plus 8: others may have to be granted permits, because one call looks at so many waiters only, or the server
--        refused a step; send the command again
--        plus 16: a waiter was granted permits
-- include tombstone.lua
-- include mint.lua
-- if guarded: -- include guard.lua
-- include group.lua
group, fence, entries, waiters, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local o, label = string.match(ARGV[1], '^|([^|]*)|%d+|(.*)$')
local tomb, rest, token = string.match(ARGV[2], '^(%d+):(%d+):(%d+)')
-- if guarded: marker, guard = KEYS[6], string.match(ARGV[2], '%d+$')
if token == '9999999999999999' or tomb ~= '0' then drop(o) end    -- as in handover.lua
local r = 0
local c, numbers = load(o)
local isGroup = c or not numbers
if not isGroup and numbers.err then return numbers end
if c then
  r = c > token and 3 or 1
  -- What came twice may have been released, and kept, before.
  if rest == '0' or redis.call('HGET', entries, 'hold:' .. o) then
    free(numbers)
    redis.call('ZREM', group, o)
    redis.call('HDEL', entries, o)
  else                                         -- the numbers stay taken, by nobody
    local till = clock() + rest * 1000
    redis.call('HDEL', entries, o)             -- first: a server that is out of memory accepts others after it
    redis.call('ZADD', group, string.format('%.0f', till), 'hold:' .. o)
    redis.call('ZREM', group, o)
    outlive(till, clock())
    redis.call('HSET', entries, 'hold:' .. o, c .. '|' .. numbers .. '|', '', state())
  end
elseif buried(waiters, o) == 'f' then
  r = 4                                        -- see force.lua
end
local again = tomb ~= '0' and r == 0 and buried(waiters, o) == 'd1'
if again then
  r = 2
elseif tomb ~= '0' then
  bury(waiters, o, r == 1 and 'd1' or 'x', tomb)
end
-- As in handover.lua, what is released is told nevertheless if the server refuses what comes now.
local done, given = true, 0
if isGroup and (marked == '+' or not c) and redis.call('EXISTS', queue) == 1 then
  done, given = pcall(hand_on)
elseif marked == '+' then
  marked = '-'
end
if unsaved then save() end
return not done and r + 8 or given == 1 and r + 16 or given == -1 and r + 8 or r
