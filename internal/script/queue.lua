-- What the scripts about waiting share; it needs mint.lua. Included late, so that what does not wait does not pay for it.
--
-- The queue is a sorted set of waiters by ticket, the time of their arrival in us. Beside it, a hash holds for each of
-- them "deadline in ms:TTL in ms:channel". Whoever frees the lock grants it to the first of the queue and tells it.
local CLAIM = 2000                             -- ms in which a waiter that was granted has to come for the rest of its TTL
local MAXLEASE = 6000                          -- ms without a heartbeat after which a waiter counts as dead, at most
local lock, queue, waiters, turn               -- names, for the script to set; turn is Redlock's, nil elsewhere

-- The token of who holds the lock.
local function token_of_holder()
  local f = tonumber(redis.call('GET', fence) or '0') or 0
  return f > 0 and f or mint(f)
end

local function drop(o)
  redis.call('ZREM', queue, o)
  redis.call('HDEL', waiters, o)
end

-- Puts o in the queue, or leaves it in its place and says that it is alive. With a ticket it goes back to where it was.
-- Returns its ticket, and for who has just come its rank: 0, or 1 if it is not the first.
local function join(o, lease, ttl, chan, ticket)
  ticket = tonumber(ticket)
  local s, rank, kept = ticket > 0 and redis.call('ZSCORE', queue, o), nil, false
  if not s then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
    s = 0 < ticket and ticket < clock() and ticket or math.max(clock(), (tonumber(last) or 0) + 1)
    if redis.call('ZADD', queue, 'NX', string.format('%.0f', s), o) == 0 then    -- the first write: refused when out of memory
      s = redis.call('ZSCORE', queue, o)       -- it came twice
    else
      if not last then redis.call('DEL', waiters) end          -- left over from a queue that was evicted
      if s == clock() then
        rank = last and 1 or 0
        -- The first to come in a second has prolonged the queue, for all who come in that second: they send heartbeats.
        kept = last and math.floor(last / 1000000) == math.floor(s / 1000000)
      end
    end
  end
  local deadline = math.floor(clock() / 1000) + math.max(1, math.min(tonumber(lease), MAXLEASE))
  redis.call('HSET', waiters, o, string.format('%.0f:%s:%s', deadline, ttl, chan))
  if not kept then
    redis.call('PEXPIRE', queue, 2 * MAXLEASE)
    redis.call('PEXPIRE', waiters, 2 * MAXLEASE)
  end
  return tonumber(s), rank
end

-- Gives the lock (or the turn), if it is free, to the first waiter that is alive, and tells it; self, who is asking, need
-- not be told. The only place that gives anything to somebody else. free: it is known to be; f: the counter, if it is known.
-- Returns 0 nothing to give, or nobody to have it | 1, to whom, its token | -1 more dead waiters than one call may skip.
local function hand_on(self, free, f)
  if not free and redis.call('EXISTS', lock, turn or lock) > 0 then return 0 end
  for _ = 1, 64 do
    local h = redis.call('ZPOPMIN', queue)[1]  -- before granting: else its own release would grant it again
    if not h then return 0 end
    local deadline, ttl, chan = string.match(redis.call('HGET', waiters, h) or '', '^(%d+):(%d+):(.*)$')
    redis.call('HDEL', waiters, h)
    local ahead = deadline and tonumber(deadline) - math.floor(clock() / 1000)
    if ahead and ahead >= 0 and ahead <= MAXLEASE then
      -- Told before it is granted, because a refusal by ACL must not come after the grant. Whoever cannot be told (no
      -- channel, or it is refused) is granted too, and will ask. Whoever listens no more is skipped: it comes back with
      -- its ticket, if it lives.
      local told = -1
      if h ~= self and chan ~= '' then told = redis.pcall('PUBLISH', chan, h) end
      if told ~= 0 then
        if turn then
          redis.call('SET', turn, h .. ' ' .. chan, 'PX', CLAIM)
          return 1, h
        end
        local c = mint(f or redis.call('GET', fence))
        redis.call('SET', lock, h, 'PX', h == self and ttl or math.min(tonumber(ttl), CLAIM))
        return 1, h, c
      end
    end
  end
  return -1
end

-- When to ask again, in ms, if the lock (or turn) lives for left ms and hand_on answered r.
local function wake(r, left)
  if r == -1 then return 0 end
  return left >= 0 and math.min(CLAIM, left + 1) or CLAIM
end

