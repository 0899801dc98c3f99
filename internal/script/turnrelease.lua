-- Redlock: release a lock on the node that keeps the turns, and notify the waiter that has the turn.
--
-- KEYS: 1 lock  2 tombstone of this attempt  3 fencing counter  4 turn  5 queue  6 waiters      (one hash slot)
-- ARGV: 1 "owner:tomb:rest:token:waiter": tomb, rest and token as in undo.lua; waiter is the owner's ID in the queue,
--         empty if it was not in it. Another colon at the end says that the waiter leaves the queue, and has held
--         nothing that others waited for. Owner and waiter have no colon. This is one word for the reason given in
--         acquire.lua.
-- reply: 0 to 4, see undo.lua
--        plus 8: many dead waiters were skipped and no live one was found yet; send the command again
--        plus 16: a waiter has the turn now
-- include undo.lua
local o, tomb, rest, token, w, leaves = string.match(ARGV[1], '^([^:]+):(%d+):(%d+):(%d+):([^:]*)(:?)$')
local r = undo(KEYS[1], KEYS[2], KEYS[3], o, tomb, rest, token)
if type(r) ~= 'number' or redis.call('EXISTS', KEYS[4], KEYS[5]) == 0 then return r end       -- nobody waits
-- include mint.lua
-- include queue.lua
lock, turn, queue, waiters = KEYS[1], KEYS[4], KEYS[5], KEYS[6]
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
  if chan == '' or redis.pcall('PUBLISH', chan, holder) ~= 0 then return r + 16 end
  redis.call('DEL', turn)                      -- its channel has no subscriber
end
local given = hand_on()
return given == 1 and r + 16 or given == -1 and r + 8 or r
