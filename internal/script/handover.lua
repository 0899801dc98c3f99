-- Release a lock, or leave its queue, and grant the lock to the first waiter.
--
-- KEYS: 1 lock  2 tombstone of this attempt  3 fencing counter  4 queue  5 waiters      (one hash slot)
-- ARGV: 1 owner  2 "tomb:rest:token", see undo.lua
-- reply: 0 to 4, see undo.lua
--        plus 8: many dead waiters were skipped and no live one was found yet; send the command again

-- The usual case comes first, as in enqueue.lua: nobody waits. It does the same as undo without a tombstone and a rest.
local alone = redis.call('EXISTS', KEYS[4], KEYS[5]) == 0
if alone and string.sub(ARGV[2], 1, 4) == '0:0:' then
  local got = redis.pcall('MGET', KEYS[1], KEYS[3])
  if got.err then return got end
  if got[1] ~= ARGV[1] then
    if got[1] and got[1] ~= 'hold:' .. ARGV[1] or not got[1] and redis.call('GET', KEYS[2]) == 'f' then return 4 end
    return 0
  end
  redis.call('DEL', KEYS[1])
  local token = string.sub(ARGV[2], 5)
  if got[2] ~= token and token ~= '0' and (tonumber(got[2] or '0') or 0) > tonumber(token) then return 3 end
  return 1
end
-- include undo.lua
local tomb, rest, token = string.match(ARGV[2], '^(%d+):(%d+):(%d+)$')
if alone then
  return undo(KEYS[1], KEYS[2], KEYS[3], ARGV[1], tomb, rest, token)
end
-- include mint.lua
-- include queue.lua
lock, fence, queue, waiters = KEYS[1], KEYS[3], KEYS[4], KEYS[5]
-- A waiter that leaves the queue has no token. An owner with a token is not in the queue, unless one of its own
-- requests is executed late; then there is a tombstone. drop comes before the SET of the tombstone, because a server
-- that is out of memory accepts that SET only after another write.
if token == '0' or tomb ~= '0' then drop(ARGV[1]) end
local r, f = undo(lock, KEYS[2], fence, ARGV[1], tomb, rest, token)
if type(r) == 'number' and hand_on(nil, r % 2 == 1 and rest == '0', f) == -1 then r = r + 8 end
return r
