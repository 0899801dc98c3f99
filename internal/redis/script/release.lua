-- Delete a lock if this owner has it, or leave a tombstone of the attempt. This is for locks without a queue.
--
-- KEYS: 1 lock  2 waiters and tombstones      (one hash slot)
-- ARGV: 1 "|owner|node|label", see value.lua
--       2 "tomb:rest:token", as in undo.lua
-- reply: 0 to 4, see undo.lua
-- include undo.lua
local tomb, rest, token = string.match(ARGV[2], '^(%d+):(%d+):(%d+)$')
return undo(KEYS[1], KEYS[2], ARGV[1], tomb, rest, token)
