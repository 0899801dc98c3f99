-- Take the lock, or wait for it in the queue. This is also the heartbeat of a waiter. It is idempotent for its owner.
--
-- KEYS: 1 lock  2 waiters and tombstones  3 fencing counter  4 queue      (one hash slot)
-- ARGV: 1 "|owner|1|label", see value.lua; the owner is unique to this attempt
--       2 "ttl:posttl:ticket:n:channel": TTL in ms; how long the position is kept without another heartbeat, in ms,
--         "0" = do not wait; ticket from an earlier reply, "0" = none; how many tokens a grant to the caller has;
--         channel for the notification, empty for none
--       guarded: 2 "ttl:posttl:ticket:n:guard:channel", see guard.lua, and the key 5 marker
-- reply: counter: granted now, for the whole TTL, with n tokens from the counter on
--        | {1, counter, PTTL}: granted before. If PTTL < TTL, somebody else has granted it, and it has to be claimed.
--          This does not say how many tokens there are; a claim does
--        | {0, PTTL of the lock, rank, ask again in ms, ticket, label of the owner}: not granted. PTTL < 0: nobody has
--          the lock. Rank: how many waiters are before this one; 1 for a new waiter that is not the first; -1 for one
--          that does not wait
--        | {2, ...}: as {0, ...}, and the waiter has to poll; see queue.lua
--        | {-1}: this attempt was released before it was executed
--        | {-2}: the key holds something that is not a lock
--        | {-3, ms}, {-4, guard}, {-5, 0}: see guard.lua
-- include value.lua
-- include tombstone.lua
-- include mint.lua
-- if guarded: -- include guard.lua
-- include queue.lua
lock, waiters, fence, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local o, label = string.match(ARGV[1], '^|([^|]*)|%d+|(.*)$')
local ttl, posttl, ticket, n, chan = string.match(ARGV[2], '^(%d+):(%d+):(%d+):(%d+):(.*)$')
-- if guarded: marker = KEYS[5]
-- if guarded: guard, chan = string.match(chan, '^(%d+):(.*)$')
local cur = redis.pcall('GET', lock)
if type(cur) == 'table' then
  if not string.find(cur.err, 'WRONGTYPE', 1, true) then return cur end
  drop(o)
  return {-2}
end
local counter = mine(cur, ARGV[1])
if counter then                                -- delivered twice, or the notification was lost
  drop(o)
  -- if guarded: local rests = resting(clock())  -- as in claim.lua
  -- if guarded: if rests then return rests end
  return {1, tonumber(counter), redis.call('PTTL', lock)}
end
if buried(waiters, o) then return {-1} end
-- if guarded: local rests = not cur and resting(clock())
-- if guarded: if rests then return rests end
local _, holder = parts(cur)
local r, h, c, rank, left = 0, nil, nil, nil, -2
if cur then
  left = redis.call('PTTL', lock)
  if left == -1 then
    drop(o)
    return {-2}
  end
  if posttl == '0' then return {0, left, -1, wake(0, left), 0, holder or ''} end
elseif redis.call('EXISTS', queue) == 0 then
  c = mint(1, 0, nil, tonumber(n))
  redis.call('SET', lock, c .. ARGV[1], 'PX', ttl)
  return tonumber(c)
end
ticket, rank = join(o, label, posttl, ttl, chan, ticket)
if cur then
  mark(cur)
else
  rank = nil                                   -- hand_on may skip some waiters
  r, h, c = hand_on(o, nil, tonumber(n))
  if h == o then return tonumber(c) end
  left = redis.call('PTTL', lock)
end
if posttl == '0' then
  drop(o)
  return {0, left, -1, wake(r, left), 0, holder or ''}
end
return {poll(cur, o), left, rank or redis.call('ZRANK', queue, o), wake(r, left), ticket, holder or ''}
