-- Redlock: release a lock on the node that keeps the turns, and notify the waiter that has the turn.
--
-- KEYS: 1 lock  2 waiters and tombstones  3 queue  4 turn      (one hash slot)
-- ARGV: 1 "|owner|node|label", see value.lua
--       2 "tomb:rest:token:waiter": tomb, rest and token as in undo.lua; waiter is the owner's ID in the queue, empty
--         if it was not in it. Another colon at the end says that the waiter leaves the queue, and has held nothing
--         that others waited for. A waiter has no colon.
-- reply: 0 to 4, see undo.lua
--        plus 8: many dead waiters were skipped and no live one was found yet; send the command again
--        plus 16: a waiter has the turn now
-- include undo.lua
local tomb, rest, token, w, leaves = string.match(ARGV[2], '^(%d+):(%d+):(%d+):([^:]*)(:?)$')
local r = undo(KEYS[1], KEYS[2], ARGV[1], tomb, rest, token)
if type(r) ~= 'number' or redis.call('EXISTS', KEYS[3], KEYS[4]) == 0 then return r end       -- nobody waits
-- include mint.lua
-- include queue.lua
lock, waiters, queue, turn = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local holder, chan = string.match(redis.call('GET', turn) or '', '^(%S+) (.*)$')
if w ~= '' then
  drop(w)
  if holder == w then
    redis.call('DEL', turn)
    holder = nil
  end
end
-- A waiter that leaves notifies the holder of the turn only if its last attempt had the lock here.
if holder and (leaves == '' or r % 2 == 1) and redis.call('EXISTS', lock) == 0 then
  if chan == '' or publish(chan, holder) ~= 0 then return r + 16 end
  redis.call('DEL', turn)                      -- its channel has no subscriber
end
local given = hand_on()
return given == 1 and r + 16 or given == -1 and r + 8 or r
