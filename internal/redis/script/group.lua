-- The functions that the scripts about groups of permits share. They need tombstone.lua and mint.lua, and guard.lua in
-- the scripts with a guard. The queue is that of a lock; in front of its channel, a waiter has "n:weight:": how many
-- permits there are as far as it knows, and how many it wants.
-- include waiters.lua
-- include groupentry.lua
local first                                    -- when the first entry ends, in us; nil: there is none
local unsaved = false                          -- the state is to be written
local vacant = false                           -- there is nothing: none of the keys from the third on
local more = false                             -- there are further entries whose time is over

-- Writes the state. Without entries, there is none.
local function save()
  unsaved = false
  if string.find(taken, '1', 1, true) then
    redis.call('HSET', entries, '', state())
  else
    redis.call('DEL', entries)
    life, marked, taken = 0, '-', ''
  end
end

-- Makes numbers such as "9,15,0-7" free. No number is there twice.
local function free(numbers)
  local ranges, parts, at = {}, {}, 1
  for a, b in string.gmatch(numbers, '(%d+)-?(%d*)') do
    ranges[#ranges + 1] = {a + 1, (b == '' and a or b) + 1}
  end
  table.sort(ranges, function(x, y) return x[1] < y[1] end)
  for _, range in ipairs(ranges) do
    parts[#parts + 1] = string.sub(taken, at, range[1] - 1) .. string.rep('0', range[2] - range[1] + 1)
    at = range[2] + 1
  end
  taken = table.concat(parts) .. string.sub(taken, at)
  unsaved = true
  if not string.find(taken, '1', 1, true) then life = 0 end    -- the key of the last entry is deleted with it
end

-- Returns where the first mark is from at on, or nil.
local function seek(mark, at)
  return at <= #taken and string.find(taken, mark, at, true) or nil
end

-- Returns the first weight numbers below n that are free, and what is taken with them. Returns nil if there are fewer.
-- Numbers are sought and written as ranges, because the server is busy meanwhile.
local function fit(n, weight)
  local ranges, parts, at = {}, {}, 1
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

-- Reads the state without entries whose time is over, that of o and 64 others at most, because the server is busy
-- meanwhile. Returns what entry does. Returns nil and a reply if the key is not that of a group. From here on, who is
-- in the hash has its numbers. Neither o nor a waiter has an entry whose time is over.
local function load(o)
  local front = redis.pcall('ZRANGE', group, 0, 0, 'WITHSCORES')
  if front.err then return nil, string.find(front.err, 'WRONGTYPE', 1, true) and {-2} or front end
  if not front[1] then
    vacant = redis.call('EXISTS', unpack(KEYS, 3)) == 0
    if not vacant and redis.call('EXISTS', entries) == 1 then redis.call('DEL', entries) end    -- half of it was lost
    return
  end
  local c, numbers, label = entry(o)
  if life == 0 then                            -- the other half was lost, or it is not of this library
    if redis.call('PTTL', group) == -1 then return nil, {-2} end
    redis.call('DEL', group)
    return
  end
  if front[2] + 0 <= clock() then
    local all, over, of = redis.call('ZRANGE', group, 0, 63, 'WITHSCORES'), {}, {}
    if c and (redis.call('ZSCORE', group, o) or 0) + 0 <= clock() then
      c, numbers, label = nil, nil, nil
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
  return c, numbers, label
end

-- Makes o the owner of numbers for ms, with what is taken then, and returns its counter.
local function grant(o, label, ms, numbers, with)
  local c, till = mint(1, 0), clock() + ms * 1000    -- the first write
  redis.call('ZADD', group, string.format('%.0f', till), o)
  taken, unsaved = with, false
  local longer = math.ceil(till / 1000) > life
  if longer then life = 2 * math.ceil(till / 1000) - math.floor(clock() / 1000) end
  redis.call('HSET', entries, o, c .. '|' .. numbers .. '|' .. label, '', state())
  if longer then
    local left = string.format('%.0f', life - math.floor(clock() / 1000))
    redis.call('PEXPIRE', group, left)
    redis.call('PEXPIRE', entries, left)
  end
  first = math.min(first or till, till)
  return c
end

-- Grants permits to those that wait, in the order of their arrival, up to the first that cannot have all that it
-- wants, and notifies them; see hand_on of queue.lua. self is the waiter that calls. It is not notified, and what it is
-- granted has its whole TTL. Returns 0: nobody was granted anything, 1: somebody was, or -1: there is more than one call
-- may look at; and the counter and the numbers of self.
--
-- If the first waiter cannot be served and nobody listens on its channel, it has died, and the one behind it passes it.
local function hand_on(self)
  -- if guarded: if not grants and resting(clock()) then return 0 end
  local r, c, numbers = 0, nil, nil
  for _ = 1, 64 do
    local order = redis.call('ZRANGE', queue, 0, 1)
    local h = order[1]
    if not h then return r, c, numbers end
    local ttl, label, wants = alive(h)
    local n, weight, chan = string.match(wants or '', '^(%d+):(%d+):(.*)$')
    local some, with
    if n then some, with = fit(n + 0, weight + 0) end
    if n and not some then
      if more then break end
      if not (self and order[2] == self and chan ~= '' and publish(chan, '') == 0) then return r, c, numbers end
    end
    local told = -1
    if some and h ~= self and chan ~= '' then told = publish(chan, h) end
    drop(h)                                    -- before the grant: who has permits is never in the queue
    if some and told ~= 0 then
      marked = order[2] and '+' or '-'
      local mine = h == self
      local got = grant(h, label, mine and ttl or math.min(tonumber(ttl), CLAIM), some, with)
      if mine then c, numbers = got, some end
      r = 1
    end
  end
  return -1, c, numbers
end
