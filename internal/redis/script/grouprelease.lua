-- Return what one has of a group, or leave its queue, and grant what that frees to those that wait. Or make another
-- lock of a group a shared one, and extend it.
--
-- KEYS: 1 group  2 fencing counter  3 entries  4 waiters and tombstones  5 queue      (one hash slot)
-- ARGV: 1 "|owner|1|label", see value.lua  2 "tomb:rest:token", see undo.lua; or "s:ttl:counter", see groupextend.lua
--       guarded: 2 "tomb:rest:token:guard", see guard.lua, and the key 6 marker
-- reply: 0 to 4, see undo.lua
--        plus 8: others may have to be granted something, because one call looks at so many waiters only, or the server
--        refused a step; send the command again
--        plus 16: a waiter was granted something, or after an extension as that of groupextend.lua
-- include tombstone.lua
-- include mint.lua
-- if guarded: -- include guard.lua
-- include group.lua
group, fence, entries, waiters, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local o, label = string.match(ARGV[1], '^|([^|]*)|%d+|(.*)$')
local tomb, rest, token = string.match(ARGV[2], '^(%w+):(%d+):(%d+)')
-- if guarded: marker, guard = KEYS[6], string.match(ARGV[2], '%d+$')
local lowers = tomb == 's'
if lowers then
  tomb = '0'
elseif token == '9999999999999999' or tomb ~= '0' then
  drop(o)                                      -- as in handover.lua
end
local r = 0
local c, has, name = load(o)
local isGroup = c or not has
if not isGroup and has.err then return has end
if c then
  r = c > token and 3 or 1
  if lowers then
    if r == 3 then return r end
    taken = tally(has, -1)
    taken, unsaved = tally('s', 1), true
    local till = math.max(redis.call('ZSCORE', group, o) + 0, clock() + rest * 1000)
    outlive(till, clock())
    redis.call('ZADD', group, 'XX', string.format('%.0f', till), o)
    redis.call('HSET', entries, o, c .. '|s|' .. name)
  -- What came twice may have been released, and kept, before.
  elseif rest == '0' or redis.call('HGET', entries, 'hold:' .. o) then
    free(has)
    redis.call('ZREM', group, o)
    redis.call('HDEL', entries, o)
  else                                         -- it stays taken, by nobody
    local till = clock() + rest * 1000
    redis.call('HDEL', entries, o)             -- first: a server that is out of memory accepts others after it
    redis.call('ZADD', group, string.format('%.0f', till), 'hold:' .. o)
    redis.call('ZREM', group, o)
    outlive(till, clock())
    redis.call('HSET', entries, 'hold:' .. o, c .. '|' .. has .. '|', '', state())
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
if lowers and c and done and given ~= -1 then return r + (marked == '+' and 16 or 0) end
return not done and r + 8 or given == 1 and r + 16 or given == -1 and r + 8 or r
