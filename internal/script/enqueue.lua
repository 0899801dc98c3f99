-- Take the lock, or wait for it in the queue. Also the heartbeat of a waiter; idempotent for its owner.
--
-- KEYS: 1 lock  2 fencing counter  3 tombstone of this attempt  4 queue  5 waiters      (one hash slot)
-- ARGV: 1 owner, unique to this attempt
--       2 "ttl:lease:ticket:channel": TTL in ms; how long to wait without another heartbeat, in ms, "0" = do not wait;
--         ticket from an earlier reply, "0" = none; channel to be told on, empty for none
-- reply: counter: granted, from now on for its TTL
--        | {1, counter, PTTL} granted before: if PTTL < TTL, by somebody else, and to be claimed
--        | {0, PTTL of the lock, rank, ask again in ms, ticket} not yet. PTTL < 0: between owners. Rank: how many are
--          before it, or just 1 for who has come; -1 for who does not wait
--        | {-1} this attempt was given up before it arrived | {-2} the key holds something that is not a lock
local call = redis.call
-- The usual case first: free, and nobody waits. Of what such a call costs a server, beyond being called, most is redis.call
-- and conversion between numbers and text, so there is as little as can be of both: a clock past the counter, which are
-- texts of the same length then, is the token as it stands. Nothing that others need is built before it.
local free = call('EXISTS', KEYS[1], KEYS[3], KEYS[4]) == 0
if free then
  local f, t = call('MGET', KEYS[2])[1], call('TIME')
  local c = t[1] .. string.sub('00000' .. t[2], -6)
  if not f or #f == #c and f < c then
    call('SET', KEYS[2], c, 'PX', '86400000')  -- keep, as in acquire.lua; the first write, and refused when out of memory
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
if cur == o then                               -- delivered again, or granted by somebody whose word was lost
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
  rank = nil                                   -- some may be skipped
  r, h, c = hand_on(o)
  if h == o then return c end
  left = redis.call('PTTL', lock)
end
if lease == '0' then
  drop(o)
  return {0, left, -1, wake(r, left), 0}
end
return {0, left, rank or redis.call('ZRANK', queue, o), wake(r, left), ticket}
