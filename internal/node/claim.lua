-- Come for a lock that somebody else has granted: prolong it to the whole TTL and learn the token.
--
-- KEYS: 1 lock  2 fencing counter  3 queue  4 waiters      (one hash slot)
-- ARGV: 1 owner  2 TTL in ms
-- reply: {1, counter, PTTL} | {0} not yours (any more): go on waiting, with the same ticket
-- include mint.lua
-- include queue.lua
lock, fence, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local cur = redis.pcall('GET', lock)
if type(cur) == 'table' and not string.find(cur.err, 'WRONGTYPE', 1, true) then return cur end
if cur ~= ARGV[1] then return {0} end
drop(ARGV[1])
local left, ttl = redis.call('PTTL', lock), tonumber(ARGV[2])
if left < ttl then
  redis.call('PEXPIRE', lock, ttl)
  left = ttl
end
return {1, token_of_holder(), left}
