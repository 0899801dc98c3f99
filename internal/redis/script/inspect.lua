-- Return the state of a lock. This changes nothing, and uses only commands that locks use, so that the same ACL is
-- enough.
--
-- KEYS: 1 lock  2 waiters and tombstones  3 fencing counter  4 queue  5 turn, if its holder counts      (one hash slot)
-- ARGV: 1 with the key 5, who does not count nevertheless: the owner of the lock, if it has had the turn. Others that
--         have the turn wait for the lock, and are not in the queue any more
-- reply: {0 free | 1 taken | 2 not a lock, PTTL, counter of the slot, number of waiters, clock in us, value}
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local waiting = 0
for _, h in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do
  local deadline = string.match(redis.call('HGET', KEYS[2], h) or '', '^(%d+):')
  if deadline and tonumber(deadline) * 1000 >= now then waiting = waiting + 1 end
end
local turn = KEYS[5] and string.match(redis.call('GET', KEYS[5]) or '', '^(%S+) ')
if turn and turn ~= ARGV[1] then waiting = waiting + 1 end
local cur = redis.pcall('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
local state, value = 0, ''
if type(cur) == 'table' then
  if not string.find(cur.err, 'WRONGTYPE', 1, true) then return cur end
  state = 2
elseif cur then
  state, value = left == -1 and 2 or 1, cur
end
return {state, left, tonumber(redis.call('GET', KEYS[3]) or '0') or 0, waiting, now, value}
