-- The queue of a lock or a group. It needs tombstone.lua.
--
-- The queue is a sorted set of waiters by ticket, the time of their arrival in us. A hash, which also has tombstones,
-- has "deadline in ms:TTL in ms:label|channel" for each of them. The hash exists only while somebody waits or a
-- tombstone lives.
-- include publish.lua
local CLAIM = 2000                             -- ms for a waiter to claim what it was granted
local MAXPOSTTL = 6000                         -- most ms without a heartbeat after which a waiter counts as dead
local BACK = 2^52                              -- the queue ends with waiters of another kind above; see group.lua
local queue, waiters                           -- keys; the including script sets them

local function drop(o)
  redis.call('ZREM', queue, o)
  redis.call('HDEL', waiters, o)
end

-- Returns when the last of those that wait has come, or nil. Who comes later has a later ticket, also if the clock was
-- set back. If others wait above BACK, o, which is not in the queue, stands between both ends for a moment.
local function newest(o)
  local last = tonumber(redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2])
  if not last or last < BACK then return last end
  if redis.call('ZADD', queue, 'NX', string.format('%.0f', BACK), o) == 0 then return end    -- delivered twice
  local rank = redis.call('ZRANK', queue, o)
  local around = redis.call('ZRANGE', queue, math.max(rank - 1, 0), rank + 1, 'WITHSCORES')
  redis.call('ZREM', queue, o)
  last = 0
  for i = 2, #around, 2 do
    local score = around[i] + 0
    if score ~= BACK then last = math.max(last, score < BACK and score or 2^53 - score) end
  end
  return last
end

-- Puts o in the queue, or keeps its position and records that it is alive. With a ticket, o returns to its old
-- position. Returns its ticket, and for a new waiter its rank: 0, or 1 if it is not the first.
local function join(o, label, posttl, ttl, chan, ticket)
  ticket = tonumber(ticket)
  local s, rank, kept = ticket > 0 and redis.call('ZSCORE', queue, o), nil, false
  if not s then
    local last = newest(o)
    s = 0 < ticket and ticket < clock() and ticket or math.max(clock(), (last or 0) + 1)
    if redis.call('ZADD', queue, 'NX', string.format('%.0f', s), o) == 0 then    -- the first write
      s = redis.call('ZSCORE', queue, o)       -- delivered twice
    elseif s == clock() then
      rank = last and 1 or 0
      -- The first waiter of each second extends the life of the queue. Others that come in that second need not.
      kept = last and math.floor(last / 1000000) == math.floor(s / 1000000)
    end
  end
  local deadline = math.floor(clock() / 1000) + math.max(1, math.min(tonumber(posttl), MAXPOSTTL))
  redis.call('HSET', waiters, o, string.format('%.0f:%s:%s|%s', deadline, ttl, label, chan))
  if not kept then
    redis.call('PEXPIRE', queue, 2 * MAXPOSTTL)
    prolong(waiters, 2 * MAXPOSTTL)
  end
  return tonumber(s), rank
end

-- Returns the TTL, the label and the channel of a waiter, and for how many ms it counts as alive, or nil if it is dead.
local function alive(h)
  local deadline, ttl, label, chan =
    string.match(redis.call('HGET', waiters, h) or '', '^(%d+):(%d+):([^|]*)|(.*)$')
  local ahead = deadline and tonumber(deadline) - math.floor(clock() / 1000)
  if ahead and ahead >= 0 and ahead <= MAXPOSTTL then return ttl, label, chan, ahead end
end

-- Returns when to ask again, in ms. left is the life of the lock (or turn) in ms, and r the result of hand_on.
local function wake(r, left)
  if r == -1 then return 0 end
  return left >= 0 and math.min(CLAIM, left + 1) or CLAIM
end
