-- Release a lock, or leave its queue, and grant the lock to the first waiter.
--
-- KEYS: 1 lock  2 waiters and tombstones  3 fencing counter  4 queue      (one hash slot)
-- ARGV: 1 "|owner|1|label", see value.lua  2 "tomb:rest:token", see undo.lua
--       guarded: 2 "tomb:rest:token:guard", see guard.lua, and the key 5 marker
-- reply: 0 to 4, see undo.lua
--        plus 8: no waiter has the lock yet, because many dead ones were skipped or the server refused a step; send the
--        command again
--        plus 16: a waiter has the lock now
-- include undo.lua
-- include mint.lua
-- if guarded: -- include guard.lua
-- include queue.lua
lock, waiters, fence, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local tomb, rest, token = string.match(ARGV[2], '^(%d+):(%d+):(%d+)')
-- if guarded: marker, guard = KEYS[5], string.match(ARGV[2], '%d+$')
-- A waiter that leaves has no token. It goes out of the queue, whether it leaves a tombstone or not. An owner with a
-- token is not in the queue, unless one of its own requests is executed late; then there is a tombstone.
if token == '9999999999999999' or tomb ~= '0' then drop(string.match(ARGV[1], '^|([^|]*)|')) end
local r = undo(lock, waiters, ARGV[1], tomb, rest, token)
if type(r) ~= 'number' then return r end
-- While a slot of a Redis Cluster migrates, the server refuses what needs a key that does not exist, such as the lock
-- that undo has deleted. That the lock is released must be told nevertheless.
local done, given = pcall(hand_on, nil, r % 2 == 1 and rest == '0')
if not done then given = -1 end
return given == 1 and r + 16 or given == -1 and r + 8 or r
