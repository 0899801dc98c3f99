-- Delete a lock if this owner has it, or leave a tombstone of the attempt. This is for locks without a queue.
--
-- KEYS: 1 lock  2 waiters and tombstones      (one hash slot)
-- ARGV: 1 "|owner|node|label", see value.lua
--       2 "tomb:rest:token:channel": tomb, rest and token as in undo.lua; channel to publish on that the lock is free,
--         empty for none. A clean-up notifies nobody.
-- reply: 0 to 4, see undo.lua
-- include undo.lua
-- include publish.lua
local tomb, rest, token, chan = string.match(ARGV[2], '^(%d+):(%d+):(%d+):(.*)$')
local r = undo(KEYS[1], KEYS[2], ARGV[1], tomb, rest, token)
if chan ~= '' and rest == '0' and (r == 1 or r == 3) then publish(chan, 'free') end
return r
