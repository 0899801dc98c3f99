-- Take something of a group, or wait for it in the queue. This is also the heartbeat of a waiter. It is idempotent for
-- its owner.
--
-- KEYS: 1 group  2 fencing counter  3 entries  4 waiters and tombstones  5 queue      (one hash slot)
--       then locks of programs that make a lock of each place: the gates, and the first place
-- ARGV: 1 "|owner|1|label", see value.lua; the owner is unique to this attempt
--       2 "ttl:posttl:ticket:n:weight:channel": as in enqueue.lua; n is how many permits there are, as far as the
--         caller knows, and weight is how many it wants. Or n is the kind of a lock, and weight is empty or, for an
--         upgrade, the owner of the upgradeable one
--       guarded: 2 "ttl:posttl:ticket:n:weight:guard:channel", see guard.lua, and the marker as the last key
-- reply: {3, counter, what}: granted now, for the whole TTL: numbers, as "0-9,15", or a kind. With a 1 at the end, as in
--          {-7, 1}, others have to be granted something, because one call looks at so many waiters only
--        | {1, counter, what is left in ms, what}: granted before. It has to be claimed
--        | {0, ms until an entry that is in the way ends, rank, ask again in ms, ticket, label of its owner}: not
--          granted; see enqueue.lua
--        | {4, ...}: as {0, ...}, and others wait in front of this one. The label is that of the first of them, and the
--          time may be that until it counts as dead
--        | {-1}: this attempt was released before it was executed
--        | {-2}: the key holds something that is not a group, or a group of something else
--        | {-3, ms}, {-4, guard}, {-5, 0}: see guard.lua
--        | {-6}: a program that makes a lock of each place has one of them, or a gate
--        | {-7}: the caller of this upgrade has no upgradeable lock any more
-- include tombstone.lua
-- include mint.lua
-- if guarded: -- include guard.lua
-- include group.lua
group, fence, entries, waiters, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local o, label = string.match(ARGV[1], '^|([^|]*)|%d+|(.*)$')
local ttl, posttl, ticket, n, weight, chan = string.match(ARGV[2], '^(%d+):(%d+):(%d+):(%w+):([^:]*):(.*)$')
-- if guarded: marker = table.remove(KEYS)
-- if guarded: guard, chan = string.match(chan, '^(%d+):(.*)$')
local c, has = load(o)
if c then                                      -- delivered twice, or the notification was lost
  drop(o)
  -- if guarded: local rests = resting(clock())  -- as in claim.lua
  -- if guarded: if rests then return rests end
  return {1, tonumber(c), math.max(1, math.floor((redis.call('ZSCORE', group, o) - clock()) / 1000)), has}
end
local kind = string.find(n, '%a') ~= nil
if not has and first and are_locks() ~= kind then has = {-2} end
if has then
  if has[1] then drop(o) end
  return has
end
local upgrades = kind and weight ~= ''
if upgrades and not upgradeable(weight) then
  drop(o)
  return hand_on(o) == -1 and {-7, 1} or {-7}  -- to those behind it
end
local queued = false                           -- somebody waits
if not vacant and redis.call('EXISTS', waiters, queue) > 0 then
  if buried(waiters, o) then return {-1} end
  queued = redis.call('EXISTS', queue) == 1
end
if not vacant and not first and KEYS[6] and redis.call('EXISTS', unpack(KEYS, 6)) > 0 then return {-6} end
local r, rank = 0, -1

-- Reports whether one that wants this waits behind others.
local function behind() return queued and not upgrades and (n ~= 's' or front(true) ~= nil) end

-- Takes what is free.
local function take()
  local some, with = fit(n, weight)
  if not some then
    if more then r = -1 end
    return
  end
  -- if guarded: local rests = not grants and resting(clock())
  -- if guarded: if rests then return rests end
  if upgrades and queued then drop(o) end
  marked = queued and redis.call('EXISTS', queue) == 1 and '+' or '-'
  return {3, tonumber(grant(o, label, ttl, some, with)), some, r == -1 and 1 or nil}
end

local waits = behind()
-- if guarded: local rests = waits and resting(clock())
-- if guarded: if rests then return rests end
if waits and posttl == '0' then
  r = hand_on()
  queued = redis.call('EXISTS', queue) == 1
  waits = behind()
end
if not waits then
  local got = take()
  if got then return got end
end
if posttl ~= '0' then
  if upgrades and ticket == '0' then
    ticket = math.floor(clock() / 2)
  elseif n == 'u' then                         -- join finds its ticket
    local t = tonumber(ticket)
    if not (0 < t and t < clock()) then t = math.max(clock(), (newest(o) or 0) + 1) end
    redis.call('ZADD', queue, 'NX', string.format('%.0f', 2^53 - t), o)
    ticket = 1
  end
  ticket, rank = join(o, label, posttl, ttl, n .. ':' .. weight .. ':' .. chan, ticket)
  if n == 'u' then ticket = 2^53 - ticket end
  if waits then
    rank = nil                                 -- hand_on may skip some waiters
    r, c, has = hand_on(o)
    if c then return {3, tonumber(c), has, r == -1 and 1 or nil} end
  end
  if marked == '-' and first then              -- a release looks at the queue of a group that is marked
    marked = '+'
    save()
  end
  if n == 'u' then
    rank = redis.call('ZRANGE', queue, -1, -1)[1] == o and 0 or 1
  elseif kind or not rank then
    rank = redis.call('ZRANK', queue, o)
  end
end
local left = first and math.max(0, math.ceil((first - clock()) / 1000)) or -2
local before, of = not upgrades and front(n == 's') or nil, nil
if before == o then before = nil end
if before then
  local _, name, _, ahead = alive(before)
  of = name
  if ahead then left = left < 0 and ahead + 1 or math.min(left, ahead + 1) end
else                                           -- who has something else is not in the way
  for i = 0, 63 do
    local holder = redis.call('ZRANGE', group, i, i, 'WITHSCORES')
    if not holder[1] then break end
    local has, name = string.match(redis.call('HGET', entries, holder[1]) or '', '^%d+|([^|]*)|(.*)$')
    if has and in_way(has, holder[1], n, weight) then
      of, left = name, math.max(0, math.ceil((holder[2] - clock()) / 1000))
      break
    end
  end
end
return {before and 4 or 0, left, rank or -1, wake(r, left), tonumber(ticket), of or ''}
