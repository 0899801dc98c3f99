-- The functions that the scripts about waiting for a lock share. They need value.lua, tombstone.lua and mint.lua,
-- and guard.lua in the scripts with a guard. The script that frees the lock grants it to the first waiter and notifies
-- that waiter.
-- include waiters.lua
local POLL = 2                                 -- added to the code of a reply: the waiter has to poll
local lock, turn                               -- keys; the including script sets them; turn is nil except on Redlock

-- Records in the lock's value that somebody waits. cur is the value, which this script has read. A lock that is not
-- marked is released without a look at the queue. If the server refuses the mark, the waiters are served later, by
-- their heartbeats. The value of another library stays as it is, because its release compares it.
local function mark(cur)
  local _, _, marked = parts(cur)
  if marked == '' then redis.pcall('APPEND', lock, '+') end
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
