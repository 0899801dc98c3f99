-- The functions that the scripts about waiting share. They need value.lua, tombstone.lua and mint.lua,
-- and guard.lua in the scripts with a guard.
--
-- The queue is a sorted set of waiters by ticket, the time of their arrival in us. A hash, which also has tombstones,
-- has "deadline in ms:TTL in ms:label|channel" for each of them. The hash exists only while somebody waits or a
-- tombstone lives. The script that frees the lock grants it to the first waiter and notifies that waiter.
-- include publish.lua
local CLAIM = 2000                             -- ms for a waiter to claim a lock that it was granted
local MAXPOSTTL = 6000                         -- most ms without a heartbeat after which a waiter counts as dead
local POLL = 2                                 -- added to the code of a reply: the waiter has to poll
local lock, queue, waiters, turn               -- keys; the including script sets them; turn is nil except on Redlock

local function drop(o)
  redis.call('ZREM', queue, o)
  redis.call('HDEL', waiters, o)
end

-- Records in the lock's value that somebody waits. cur is the value, which this script has read. A lock that is not
-- marked is released without a look at the queue. If the server refuses the mark, the waiters are served later, by
-- their heartbeats. The value of another library stays as it is, because its release compares it.
local function mark(cur)
  local _, _, marked = parts(cur)
  if marked == '' then redis.pcall('APPEND', lock, '+') end
end

-- Puts o in the queue, or keeps its position and records that it is alive. With a ticket, o returns to its old
-- position. Returns its ticket, and for a new waiter its rank: 0, or 1 if it is not the first.
local function join(o, label, posttl, ttl, chan, ticket)
  ticket = tonumber(ticket)
  local s, rank, kept = ticket > 0 and redis.call('ZSCORE', queue, o), nil, false
  if not s then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
    s = 0 < ticket and ticket < clock() and ticket or math.max(clock(), (tonumber(last) or 0) + 1)
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

-- Returns the TTL, the label and the channel of a waiter, or nil if it is dead.
local function alive(h)
  local deadline, ttl, label, chan =
    string.match(redis.call('HGET', waiters, h) or '', '^(%d+):(%d+):([^|]*)|(.*)$')
  local ahead = deadline and tonumber(deadline) - math.floor(clock() / 1000)
  if ahead and ahead >= 0 and ahead <= MAXPOSTTL then return ttl, label, chan end
end

-- Reports whether v is the value of another library's lock, whose release notifies nobody. A lock that is kept after
-- its release ends with its TTL, which waiters know.
local function foreign(v)
  return v and not parts(v) and string.sub(v, 1, 5) ~= 'hold:'
end

-- Returns POLL if the waiter o has to poll for the lock with the value cur, and otherwise 0. Behind another library,
-- the first waiter that is alive polls. The others do not, so polls cost the same however many wait.
local function poll(cur, o)
  if not foreign(cur) then return 0 end
  for _, h in ipairs(redis.call('ZRANGE', queue, 0, 63)) do
    if h == o then return POLL end
    if alive(h) then return 0 end
  end
  return 0
end

-- Grants the lock (or the turn), if it is free, to the first waiter that is alive, and notifies it. self is the waiter
-- that calls, and is not notified. If the lock is granted to it, it gets n tokens, and any other waiter gets one. free
-- says that the lock is known to be free. No other function grants anything to another waiter. Returns 0: not free, or
-- no waiter | 1, the waiter, its token | -1: more dead waiters than one call may skip. A server that rests grants
-- nothing. Its waiters find out by their next request.
local function hand_on(self, free, n)
  if not free and redis.call('EXISTS', lock, turn or lock) > 0 then return 0 end
  -- if guarded: if not grants and resting(clock()) then return 0 end
  for _ = 1, 64 do
    local h = redis.call('ZPOPMIN', queue)[1]  -- before the grant: the owner of a lock is never in its queue
    if not h then return 0 end
    local ttl, label, chan = alive(h)
    redis.call('HDEL', waiters, h)
    if ttl then
      -- PUBLISH comes before the grant, because a refusal by ACL must not come after it. A waiter that cannot be
      -- notified, because it has no channel or PUBLISH was refused, is granted the lock too, and will ask. A waiter
      -- whose channel has no subscriber is skipped. If it is alive, it returns with its ticket.
      local told = -1
      if h ~= self and chan ~= '' then told = publish(chan, h) end
      if told ~= 0 then
        if turn then
          redis.call('SET', turn, h .. ' ' .. chan, 'PX', CLAIM)
          return 1, h
        end
        local c = mint(1, 0, nil, h == self and n)
        local others = redis.call('EXISTS', queue) == 1 and '+' or ''
        redis.call('SET', lock, c .. '|' .. h .. '|1|' .. label .. others,
          'PX', h == self and ttl or math.min(tonumber(ttl), CLAIM))
        return 1, h, c
      end
    end
  end
  return -1
end

-- Returns when to ask again, in ms. left is the life of the lock (or turn) in ms, and r the result of hand_on.
local function wake(r, left)
  if r == -1 then return 0 end
  return left >= 0 and math.min(CLAIM, left + 1) or CLAIM
end
