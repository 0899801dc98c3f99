-- Redlock: release a lock on the node that keeps the turns, and tell whose turn it is that it is free.
--
-- KEYS: 1 lock  2 tombstone of this attempt  3 fencing counter  4 turn  5 queue  6 waiters      (one hash slot)
-- ARGV: 1 "owner:tomb:rest:token:waiter": tomb, rest and token as undo.lua has them; waiter is the one that the owner was in
--         the queue as, empty if it was not. Another colon at the end says that it leaves the queue, and has held nothing
--         that others waited for. Owner and waiter have no colon. One word, because Redis takes ten of a client that has
--         not authenticated; see acquire.lua.
-- reply: 0 to 4, see undo.lua; plus 8 if the next was not found yet among too many dead: send it again; plus 16 if it is
--        somebody's turn now
-- include undo.lua
local o, tomb, rest, token, w, leaves = string.match(ARGV[1], '^([^:]+):(%d+):(%d+):(%d+):([^:]*)(:?)$')
local r = undo(KEYS[1], KEYS[2], KEYS[3], o, tomb, rest, token)
if type(r) ~= 'number' or redis.call('EXISTS', KEYS[4], KEYS[5]) == 0 then return r end       -- nobody waits: the usual case
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
-- Who leaves has something to tell only if its last attempt was in the way of whose turn it is.
if holder and (leaves == '' or r % 2 == 1) and redis.call('EXISTS', lock) == 0 then
  if chan == '' or redis.pcall('PUBLISH', chan, holder) ~= 0 then return r + 16 end
  redis.call('DEL', turn)                      -- it listens no more
end
local given = hand_on()
return given == 1 and r + 16 or given == -1 and r + 8 or r
