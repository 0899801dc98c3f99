-- The functions that the scripts about groups share. They need tombstone.lua and mint.lua, and guard.lua in the scripts
-- with a guard. The queue is that of a lock; in front of its channel, a waiter has "n:weight:", see groupqueue.lua.
--
-- An upgrade has half of the time of its arrival as its ticket, and so comes before all others. Those that wait for an
-- upgradeable lock are a queue of their own, because readers pass them. It begins at the other end of the same set: an
-- arrival at t has the ticket 2^53 - t there, which is above BACK, and others are below it until the year 2112.
-- include waiters.lua
-- include groupentry.lua
local first                                    -- when the first entry ends, in us; nil: there is none
local unsaved = false                          -- the state is to be written
local vacant = false                           -- there is nothing: none of the keys from the third on
local more = false                             -- there are further entries whose time is over

-- Writes the state. Without entries, there is none.
local function save()
  unsaved = false
  if string.find(taken, '[1-9]') then
    redis.call('HSET', entries, '', state())
  else
    redis.call('DEL', entries)
    life, marked, taken = 0, '-', ''
  end
end

-- Returns what is taken with by more entries of each of the kinds, such as "s,u".
local function tally(kinds, by)
  local n = {}
  n.s, n.u, n.x = string.match(taken, '^(%d+)s(%d+)u(%d+)x$')
  for kind in string.gmatch(kinds, '%a') do n[kind] = (n[kind] or 0) + by end
  return string.format('%ds%du%dx', (n.s or 0) + 0, (n.u or 0) + 0, (n.x or 0) + 0)
end

-- Makes free what owners had: numbers such as "9,15,0-7", none of which is there twice, or kinds.
local function free(has)
  if string.find(has, '%a') then
    taken = tally(has, -1)
  else
    local ranges, parts, at = {}, {}, 1
    for a, b in string.gmatch(has, '(%d+)-?(%d*)') do
      ranges[#ranges + 1] = {a + 1, (b == '' and a or b) + 1}
    end
    table.sort(ranges, function(x, y) return x[1] < y[1] end)
    for _, range in ipairs(ranges) do
      parts[#parts + 1] = string.sub(taken, at, range[1] - 1) .. string.rep('0', range[2] - range[1] + 1)
      at = range[2] + 1
    end
    taken = table.concat(parts) .. string.sub(taken, at)
  end
  unsaved = true
  if not string.find(taken, '[1-9]') then life, taken = 0, '' end    -- the key of the last entry is deleted with it
end

-- Reports whether the entries are locks. Without entries, that is not known.
local function are_locks() return string.sub(taken, -1) == 'x' end

-- Returns where the first mark is from at on, or nil.
local function seek(mark, at)
  return at <= #taken and string.find(taken, mark, at, true) or nil
end

-- Returns what one that wants this can have, and what is taken with it: a lock, or the first weight numbers below n
-- that are free. Returns nil if it cannot have all that it wants. Numbers are sought and written as ranges, because the
-- server is busy meanwhile.
local function fit(n, weight)
  local kind = string.find(n, '%a') ~= nil
  if taken ~= '' and are_locks() ~= kind then return nil end
  if kind then
    local s, u, x = string.match(taken, '^(%d+)s(%d+)u(%d+)x$')
    if weight ~= '' then u = u - 1 end         -- that of its own caller
    if (x or 0) + 0 > 0 or n ~= 's' and (u or 0) + 0 > 0 or n == 'x' and (s or 0) + 0 > 0 then return nil end
    return n, tally(n, 1)
  end
  local ranges, parts, at = {}, {}, 1
  n, weight = n + 0, weight + 0
  while weight > 0 do
    local a = seek('0', at) or math.max(at, #taken + 1)
    if a > n then return nil end
    local b = math.min(seek('1', a) or n + 1, n + 1, a + weight) - 1
    ranges[#ranges + 1] = (a - 1) .. (b > a and '-' .. (b - 1) or '')
    parts[#parts + 1] = string.sub(taken, at, a - 1) .. string.rep('1', b - a + 1)
    weight, at = weight - (b - a + 1), b + 1
  end
  return table.concat(ranges, ','), table.concat(parts) .. string.sub(taken, at)
end

-- Reports whether o has an upgradeable lock.
local function upgradeable(o)
  return string.find(redis.call('HGET', entries, o) or '', '^%d+|u|') ~= nil and
    (redis.call('ZSCORE', group, o) or 0) + 0 > clock()
end

-- Reads the state without entries whose time is over, that of o and 64 others at most, because the server is busy
-- meanwhile. Returns what entry does. Returns nil and a reply if the key is not that of a group. From here on, who is
-- in the hash has what it has there. Neither o nor a waiter has an entry whose time is over.
local function load(o)
  local front = redis.pcall('ZRANGE', group, 0, 0, 'WITHSCORES')
  if front.err then return nil, string.find(front.err, 'WRONGTYPE', 1, true) and {-2} or front end
  if not front[1] then
    vacant = redis.call('EXISTS', unpack(KEYS, 3)) == 0
    if not vacant and redis.call('EXISTS', entries) == 1 then redis.call('DEL', entries) end    -- half of it was lost
    return
  end
  local c, has, label = entry(o)
  if life == 0 then                            -- the other half was lost, or it is not of this library
    if redis.call('PTTL', group) == -1 then return nil, {-2} end
    redis.call('DEL', group)
    return
  end
  if front[2] + 0 <= clock() then
    local all, over, of = redis.call('ZRANGE', group, 0, 63, 'WITHSCORES'), {}, {}
    if c and (redis.call('ZSCORE', group, o) or 0) + 0 <= clock() then
      c, has, label = nil, nil, nil
      over[1] = o
    end
    for i = 1, #all, 2 do
      if all[i + 1] + 0 > clock() then break end
      if all[i] ~= over[1] then over[#over + 1] = all[i] end
    end
    for i, h in ipairs(over) do
      of[i] = string.match(redis.call('HGET', entries, h) or '', '^%d+|([^|]*)|') or ''
    end
    free(table.concat(of, ','))
    redis.call('ZREM', group, unpack(over))
    redis.call('HDEL', entries, unpack(over))
    front = redis.call('ZRANGE', group, 0, 0, 'WITHSCORES')
    more = front[1] ~= nil and front[2] + 0 <= clock()
    save()
  end
  first = tonumber(front[2])
  return c, has, label
end

-- Makes o the owner of what it has for ms, with what is taken then, and returns its counter.
local function grant(o, label, ms, has, with)
  local c, till = mint(1, 0), clock() + ms * 1000    -- the first write
  redis.call('ZADD', group, string.format('%.0f', till), o)
  taken, unsaved = with, false
  local longer = math.ceil(till / 1000) > life
  if longer then life = 2 * math.ceil(till / 1000) - math.floor(clock() / 1000) end
  redis.call('HSET', entries, o, c .. '|' .. has .. '|' .. label, '', state())
  if longer then
    local left = string.format('%.0f', life - math.floor(clock() / 1000))
    redis.call('PEXPIRE', group, left)
    redis.call('PEXPIRE', entries, left)
  end
  first = math.min(first or till, till)
  return c
end

-- Returns who is the first in the queue, and the one behind it. passed says that those that wait for an upgradeable
-- lock do not count.
local function front(passed)
  if taken ~= '' and not are_locks() then
    local order = redis.call('ZRANGE', queue, 0, 1)
    return order[1], order[2]
  end
  local low, order = redis.call('ZRANGE', queue, 0, 1, 'WITHSCORES'), {}
  local high = passed and {} or redis.call('ZRANGE', queue, -2, -1, 'WITHSCORES')
  for i = 1, #low, 2 do
    if low[i + 1] + 0 < BACK then order[#order + 1] = {low[i], low[i + 1] + 0} end
  end
  for i = 1, #high, 2 do
    if high[i + 1] + 0 > BACK then order[#order + 1] = {high[i], 2^53 - high[i + 1]} end
  end
  table.sort(order, function(x, y) return x[2] < y[2] end)
  return order[1] and order[1][1], order[2] and order[2][1]
end

-- Grants what is free to those that wait, in the order of their arrival, up to the first that cannot have all that it
-- wants, and notifies them; see hand_on of queue.lua. Readers pass those that wait for an upgradeable lock. self is the
-- waiter that calls. It is not notified, and what it is granted has its whole TTL. Returns 0: nobody was granted
-- anything, 1: somebody was, or -1: there is more than one call may look at; and the counter of self, and what it has.
--
-- If the first waiter cannot be served and nobody listens on its channel, it has died, and the one behind it passes it.
-- An upgrade of what its caller has no longer leaves the queue, and is told that, too.
local function hand_on(self)
  -- if guarded: if not grants and resting(clock()) then return 0 end
  local r, c, has, passed = 0, nil, nil, false
  for _ = 1, 64 do
    local h, second = front(passed)
    if not h then return r, c, has end
    local ttl, label, wants = alive(h)
    local n, weight, chan = string.match(wants or '', '^(%w+):([^:]*):(.*)$')
    local lost = n == 'x' and weight ~= '' and not upgradeable(weight)
    local some, with
    if n and not lost then some, with = fit(n, weight) end
    local waits = n and not some and not lost
    if waits and more then break end
    if waits and not (self and second == self and chan ~= '' and publish(chan, '') == 0) then
      if n ~= 'u' then return r, c, has end
      passed = true
    else
      local told = -1
      if (some or lost) and h ~= self and chan ~= '' then told = publish(chan, h) end
      drop(h)                                  -- before the grant: who has something is never in the queue
      if some and told ~= 0 then
        marked = (second or passed) and '+' or '-'
        local mine = h == self
        local got = grant(h, label, mine and ttl or math.min(tonumber(ttl), CLAIM), some, with)
        if mine then c, has = got, some end
        r = 1
      end
    end
  end
  return -1, c, has
end
