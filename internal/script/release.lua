-- Delete a lock if this owner holds it, or leave word that an attempt was given up. For locks nobody queues for.
--
-- KEYS: 1 lock  2 tombstone of this attempt  3 fencing counter      (one hash slot)
-- ARGV: 1 owner  2 "tomb:rest:token:channel": life of the tombstone in ms, rest in ms, token of this lease, "0" each for
--       none, as undo.lua has them; channel to tell that the lock is free, empty for none. A clean-up tells nobody.
-- reply: 0 to 4, see undo.lua
-- include undo.lua
local tomb, rest, token, chan = string.match(ARGV[2], '^(%d+):(%d+):(%d+):(.*)$')
local r = undo(KEYS[1], KEYS[2], KEYS[3], ARGV[1], tomb, rest, token)
if chan ~= '' and rest == '0' and (r == 1 or r == 3) then redis.pcall('PUBLISH', chan, 'free') end
return r
