-- Take the lock, or wait for it in the queue. This is also the heartbeat of a waiter. It is idempotent for its owner.
--
-- KEYS: 1 lock  2 fencing counter  3 tombstone of this attempt  4 queue  5 waiters      (one hash slot)
-- ARGV: 1 owner, unique to this attempt
--       2 "ttl:lease:ticket:channel": TTL in ms; how long the position is kept without another heartbeat, in ms,
--         "0" = do not wait; ticket from an earlier reply, "0" = none; channel for the notification, empty for none
-- reply: counter: granted now, for the whole TTL
--        | {1, counter, PTTL}: granted before. If PTTL < TTL, somebody else has granted it, and it has to be claimed
--        | {0, PTTL of the lock, rank, ask again in ms, ticket}: not granted. PTTL < 0: nobody has the lock. Rank: how
--          many waiters are before this one; 1 for a new waiter that is not the first; -1 for one that does not wait
--        | {-1}: this attempt was released before it was executed
--        | {-2}: the key holds something that is not a lock
local call = redis.call
-- The usual case comes first: the lock is free and nobody waits. Most of its cost is redis.call and conversion between
-- numbers and text, so there is little of both. A clock that is past the counter is the token as it stands; the two are
-- texts of the same length then. What the other cases need is defined later.
local free = call('EXISTS', KEYS[1], KEYS[3], KEYS[4]) == 0
if free then
  local f, t = call('MGET', KEYS[2])[1], call('TIME')
  local c = t[1] .. string.sub('00000' .. t[2], -6)
  if not f or #f == #c and f < c then
    call('SET', KEYS[2], c, 'PX', '86400000')  -- keep, as in acquire.lua; the first write
    call('SET', KEYS[1], ARGV[1], 'PX', string.match(ARGV[2], '^%d+'))
    return tonumber(c)
  end
end
local o = ARGV[1]
local ttl, lease, ticket, chan = string.match(ARGV[2], '^(%d+):(%d+):(%d+):(.*)$')
-- include mint.lua
fence = KEYS[2]
if free then                                   -- the counter is ahead of the clock
  local c = mint(call('MGET', fence)[1])
  call('SET', KEYS[1], o, 'PX', ttl)
  return c
end
local cur = redis.pcall('GET', KEYS[1])
-- include queue.lua
lock, queue, waiters = KEYS[1], KEYS[4], KEYS[5]
if type(cur) == 'table' then
  if not string.find(cur.err, 'WRONGTYPE', 1, true) then return cur end
  drop(o)
  return {-2}
end
if cur == o then                               -- delivered twice, or the notification was lost
  drop(o)
  return {1, token_of_holder(), redis.call('PTTL', lock)}
end
if redis.call('EXISTS', KEYS[3]) == 1 then return {-1} end
local r, h, c, rank, left = 0, nil, nil, nil, -2
if cur then
  left = redis.call('PTTL', lock)
  if left == -1 then
    drop(o)
    return {-2}
  end
  if lease == '0' then return {0, left, -1, wake(0, left), 0} end
end
ticket, rank = join(o, lease, ttl, chan, ticket)
if not cur then
  rank = nil                                   -- hand_on may skip some waiters
  r, h, c = hand_on(o)
  if h == o then return c end
  left = redis.call('PTTL', lock)
end
if lease == '0' then
  drop(o)
  return {0, left, -1, wake(r, left), 0}
end
return {0, left, rank or redis.call('ZRANK', queue, o), wake(r, left), ticket}
