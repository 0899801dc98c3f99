-- Take a lock from its owner, for an operator, and grant it to the first waiter in the queue. The script does nothing
-- if the owner does not have the lock any more, or if the key holds something that is not a lock.
--
-- KEYS: 1 lock  2 waiters and tombstones  3 fencing counter  4 queue  5 turn, on Redlock only      (one hash slot)
-- ARGV: 1 "tomb:value": tomb is the life of the tombstone in ms; value is what the lock had. It may be another
--         library's, with any bytes. Of a lock of this library, only the owner is compared: the counter, the number of
--         the node and the mark may have changed since.
--       guarded, on one server only: 2 guard, see guard.lua, and the key 5 marker
-- reply: 1 taken | 2 taken by an earlier delivery of this command | 0 not this owner's
--        plus 8: many dead waiters were skipped and no live one was found yet; send the command again
-- include value.lua
-- include tombstone.lua
-- include mint.lua
-- if guarded: -- include guard.lua
-- include queue.lua
lock, waiters, fence, queue, turn = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
-- if guarded: turn, marker, guard = nil, KEYS[5], ARGV[2]
local tomb, value = string.match(ARGV[1], '^(%d+):(.*)$')
local r = 0
local cur = redis.pcall('GET', lock)
if type(cur) == 'table' and not string.find(cur.err, 'WRONGTYPE', 1, true) then return cur end
if type(cur) == 'table' then cur = false end
local owner = parts(value)
local o = owner or value
if cur and (cur == value or owner and parts(cur) == owner) and redis.call('PTTL', lock) >= 0 then
  redis.call('DEL', lock)                      -- before any SET: DEL is allowed when the server is out of memory
  drop(o)
  -- Without a tombstone, an acquisition of this owner that is still in flight would take the lock again. The kind 'f'
  -- is not the one that lets a release answer "deleted", because the owner's Unlock must find that the lock is lost.
  bury(waiters, o, 'f', tomb)
  r = 1
elseif buried(waiters, o) == 'f' then
  r = 2
end
if r == 0 then return 0 end
-- As in release.lua, a step that the server refuses from here on, because a slot migrates or memory is full, does not
-- keep the caller from learning that the lock was taken. The waiters then find out by their heartbeats.
local _, given = pcall(function()
  if redis.call('EXISTS', lock) == 1 then return 0 end
  local holder, chan = string.match(turn and redis.call('GET', turn) or '', '^(%S+) (.*)$')
  if holder then                               -- as in turnrelease.lua
    if chan == '' or publish(chan, holder) ~= 0 then return 0 end
    redis.call('DEL', turn)
  end
  return hand_on()
end)
return given == -1 and r + 8 or r
