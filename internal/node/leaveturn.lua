-- Redlock: stop waiting for one's turn, or give it back.
--
-- KEYS: 1 lock  2 turn  3 queue  4 waiters      (one hash slot)
-- ARGV: 1 waiter
-- reply: 1 it was its turn | 0 it was not; plus 8 if the next was not found yet among too many dead: send it again
-- include mint.lua
-- include queue.lua
lock, turn, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local r = 0
drop(ARGV[1])
if string.match(redis.call('GET', turn) or '', '^%S+') == ARGV[1] then
  redis.call('DEL', turn)
  r = 1
end
if hand_on() == -1 then r = r + 8 end
return r
