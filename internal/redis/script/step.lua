-- Acquire some of several locks in one step: the first ones that are free, as many as are wanted, or none. A lock that
-- somebody waits for is not free. If somebody holds or waits for a gate, nothing is acquired, unless enough other locks
-- are free. It is idempotent for its owners.
--
-- KEYS: n locks, g gates, the wait hashes of all n + g, the n counters of the locks
-- ARGV: 1 TTL in ms   2 how many locks are wanted, and perhaps ":" and how many of the others have to be free for gates
--       not to count   then n texts "|owner|node|label", see value.lua
--       guarded: 1 "ttl:guard", see guard.lua, and the marker as the last key
-- reply: {counter, ...}: granted, in that order, with -1 for the locks that were not wanted or not free
--        | {0, i, PTTL, label of the owner}: the lock or the gate i, from 1, has another owner, and too few are free
--        | {0, i, 0, ""}: somebody waits for the gate i, which nobody has
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

local ttl, want, spare = ARGV[1], string.match(ARGV[2], '^(%d+):?(%d*)$')
want, spare = want + 0, tonumber(spare)
-- if guarded: marker = table.remove(KEYS)
-- if guarded: ttl, guard = string.match(ttl, '^(%d+):(%d+)$')
local n = #ARGV - 2
local m = (#KEYS - n) / 2                      -- locks and gates
local held, out, own, free, other = redis.call('MGET', unpack(KEYS, 1, m)), {}, 0, 0, nil
for i = 1, n do
  local c = held[i] and mine(held[i], ARGV[2 + i])
  out[i] = tonumber(c or -1)
  if c then
    own = own + 1
  elseif held[i] then
    other = other or i
  else
    free = free + 1
  end
end
if own == want then return out end             -- delivered twice: the tokens and the TTLs stay
if own > 0 then return -1 end
local function refused(i)
  if not held[i] then return {0, i, 0, ''} end
  local left, _, label = redis.call('PTTL', KEYS[i]), parts(held[i])
  return left < 0 and 0 or {0, i, left, label or ''}
end
local taken, gate = n - free, nil
for i = m, n + 1, -1 do
  if held[i] then gate, taken = i, taken + 1 end
end
local plenty = spare and free >= want + spare
if free < want or gate and not plenty then return refused(gate or other) end
local odd = redis.call('EXISTS', unpack(KEYS, 1, 2 * m)) > taken
if odd then
  if redis.call('EXISTS', unpack(KEYS, 1, m)) > taken then return 0 end    -- not a string
  for i = n + 1, m do
    if not gate and not vacant(KEYS[m + i], '') then gate = i end
  end
end
local take, k, need = {}, 0, want + (gate and (plenty and spare or n) or 0)
for i = 1, n do
  if k == need then break end
  if not held[i] and not (odd and not vacant(KEYS[m + i], string.match(ARGV[2 + i], '^|([^|]*)|'))) then
    k = k + 1
    if k <= want then take[k] = i end
  end
end
if k < need then return gate and refused(gate) or 0 end
-- if guarded: if resting(clock()) then return 0 end
local got, drawn, set = redis.call('MGET', unpack(KEYS, 2 * m + 1, 2 * m + n)), {}, {}
for j, i in ipairs(take) do
  local f = KEYS[2 * m + i]                    -- locks of one slot share it
  if not drawn[f] and not got[i] and redis.call('EXISTS', f) == 1 then return 0 end    -- as in many.lua
  local c = math.max((tonumber(drawn[f] or got[i] or '0') or 0) + 1, clock())
  if not (c < 2^53) then return 0 end          -- a counter that was overwritten may also be no number: nan
  drawn[f], out[i] = digits(c), c
  set[2 * j - 1], set[2 * j] = f, drawn[f]
end
redis.call('MSET', unpack(set))                -- the first write: if it is refused, the whole script is
for j, i in ipairs(take) do
  local r = redis.pcall('SET', KEYS[i], set[2 * j] .. ARGV[2 + i], 'PX', ttl)
  if r.err then
    for _, t in ipairs(take) do redis.call('DEL', KEYS[t]) end
    return r
  end
end
return out
