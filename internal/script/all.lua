-- Acquire several locks in one step, if all of them are free and nobody waits for any of them. Otherwise nothing is
-- acquired. It is idempotent for its owners.
--
-- KEYS: n locks, their n wait hashes, their n counters
-- ARGV: 1 TTL in ms   then n texts "|owner|node|label", see value.lua
--       guarded: 1 "ttl:guard", see guard.lua, and the marker as the last key
-- reply: {counter, ...}: all are granted, in that order
--        | {0, i, PTTL, label of the owner}: the lock i, from 1, has another owner
--        | 0: this is not the usual case. Ask for each lock by itself: it answers why
--        | -1: this attempt was executed before, and has since lost some of the locks
--
-- Counters come first, as in many.lua. What is refused afterwards is taken back.
-- include value.lua
-- include tombstone.lua
-- if guarded: -- include guard.lua
-- include digits.lua

-- Reports whether nobody waits for a lock, and the attempt of o was not released before. The tombstones of other
-- attempts keep nobody from a free lock. A large hash is not searched: an attempt for each lock finds out by the queue.
local function vacant(hash, o)
  local size = redis.pcall('HLEN', hash)
  if type(size) == 'table' or size > 64 or buried(hash, o) then return false end
  for _, field in ipairs(redis.call('HKEYS', hash)) do
    if string.sub(field, 1, 1) ~= '!' then return false end
  end
  return true
end

local ttl = ARGV[1]
-- if guarded: marker = table.remove(KEYS)
-- if guarded: ttl, guard = string.match(ttl, '^(%d+):(%d+)$')
local n, out, other = #ARGV - 1, {}, nil
local held = redis.call('MGET', unpack(KEYS, 1, n))
for i = 1, n do
  local c = held[i] and mine(held[i], ARGV[1 + i])
  if c then
    out[#out + 1] = tonumber(c)
  elseif held[i] then
    other = other or i
  end
end
if #out == n then return out end               -- delivered twice: the tokens and the TTLs stay
if #out > 0 then return -1 end
if other then
  local left, _, label = redis.call('PTTL', KEYS[other]), parts(held[other])
  return left < 0 and 0 or {0, other, left, label or ''}
end
if redis.call('EXISTS', unpack(KEYS, 1, 2 * n)) > 0 then
  if redis.call('EXISTS', unpack(KEYS, 1, n)) > 0 then return 0 end
  for i = 1, n do
    if not vacant(KEYS[n + i], string.match(ARGV[1 + i], '^|([^|]*)|')) then return 0 end
  end
end
-- if guarded: if resting(clock()) then return 0 end
local got, drawn, set = redis.call('MGET', unpack(KEYS, 2 * n + 1, 3 * n)), {}, {}
for i = 1, n do
  local f = KEYS[2 * n + i]                    -- locks of one slot share it
  if not drawn[f] and not got[i] and redis.call('EXISTS', f) == 1 then return 0 end    -- as in many.lua
  local c = math.max((tonumber(drawn[f] or got[i] or '0') or 0) + 1, clock())
  if not (c < 2^53) then return 0 end          -- a counter that was overwritten may also be no number: nan
  drawn[f], out[i] = digits(c), c
  set[2 * i - 1], set[2 * i] = f, drawn[f]
end
redis.call('MSET', unpack(set))                -- the first write: if it is refused, the whole script is
for i = 1, n do
  local r = redis.pcall('SET', KEYS[i], set[2 * i] .. ARGV[1 + i], 'PX', ttl)
  if r.err then
    redis.call('DEL', unpack(KEYS, 1, n))
    return r
  end
end
return out
