-- Take an entry of a group from its owner, for an operator, and grant what that frees to those that wait. The script
-- does nothing if the owner does not have it any more.
--
-- KEYS: 1 group  2 fencing counter  3 entries  4 waiters and tombstones  5 queue      (one hash slot)
-- ARGV: 1 "tomb:value": tomb is the life of the tombstone in ms; value is what groupinspect.lua has returned
--       guarded: 2 guard, see guard.lua, and the key 6 marker
-- reply: as that of force.lua
-- include tombstone.lua
-- include mint.lua
-- if guarded: -- include guard.lua
-- include group.lua
group, fence, entries, waiters, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
-- if guarded: marker, guard = KEYS[6], ARGV[2]
local tomb, value = string.match(ARGV[1], '^(%d+):(.*)$')
local o, r = string.match(value, '^%d+|([^|]*)|') or value, 0
local c, has = load(o)
if c then
  free(has)
  redis.call('ZREM', group, o)
  redis.call('HDEL', entries, o)
  bury(waiters, o, 'f', tomb)                  -- as in force.lua
  r = 1
elseif has then
  return has.err and has or 0
elseif buried(waiters, o) == 'f' then
  r = 2
end
if r == 0 then return 0 end
local done, given = pcall(hand_on)
if unsaved then save() end
return (not done or given == -1) and r + 8 or r
