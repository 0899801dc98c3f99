-- Redlock: wait for the turn to ask the nodes for the lock. This is also the heartbeat of a waiter, and keeps its turn.
-- The turn is advice that one node keeps. This script does not change the lock, but for the mark that somebody waits.
--
-- KEYS: 1 lock  2 waiters and tombstones  3 queue  4 turn      (one hash slot)
-- ARGV: 1 waiter  2 "posttl:ticket:channel", as in enqueue.lua
-- reply: {1, PTTL of the lock, label of its owner}: the waiter has the turn
--        | {0, PTTL of the lock, rank, ask again in ms, ticket, label of the owner}: not yet
--        plus 2, for the first number: the waiter has to poll; see queue.lua
-- include value.lua
-- include tombstone.lua
-- include mint.lua
-- include queue.lua
lock, waiters, queue, turn = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local w = ARGV[1]
local posttl, ticket, chan = string.match(ARGV[2], '^(%d+):(%d+):(.*)$')
local left = redis.call('PTTL', lock)
local cur = redis.call('MGET', lock)[1]
local _, label = parts(cur)
label = label or ''
local holder, its = string.match(redis.call('GET', turn) or '', '^(%S+) (.*)$')
if holder == w then
  redis.call('PEXPIRE', turn, CLAIM)
  if its ~= chan then redis.pcall('SET', turn, w .. ' ' .. chan, 'PX', CLAIM) end
  mark(cur)
  return {1 + (left >= 0 and foreign(cur) and POLL or 0), left, label}
end
ticket = join(w, '', posttl, '0', chan, ticket)
mark(cur)
local r, h = hand_on(w)
if h == w then return {1, left, label} end
local busy = left
if left < 0 then busy = redis.call('PTTL', turn) end
-- A waiter that has the turn polls, and those in the queue need not.
local code = left >= 0 and not holder and poll(cur, w) or 0
return {code, left, redis.call('ZRANK', queue, w), wake(r, busy), ticket, label}
