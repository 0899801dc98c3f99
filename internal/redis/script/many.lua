-- The usual case of many acquisitions and releases at once. To call a script costs the server more than most of what is
-- in it, so the commands of many callers share one call.
--
-- KEYS: a locks to acquire, their a wait hashes, their a counters, guarded: the marker, r locks to release
-- ARGV: 1 a   2 quantum in us: the clock is rounded down to a multiple of it
--       a TTLs in ms, a texts "|owner|node|label", guarded: the guard, see guard.lua, r values
--       "counter|owner|node|label"
-- reply: one number for each, in that order; one number alone is no array, because arrays cost the server more
--        counter: granted   | 1: deleted
--        0: this is not the usual case, and the lock is as it was. Send the command that this one stands for
--
-- What can fail because of one lock only is read before the first write, or caught. So an error is the answer to all of
-- the calls, and all locks are as they were. Most of the cost is redis.call and conversion between numbers and text.
-- if guarded: -- include guard.lua
-- include digits.lua
local call, try, sub = redis.call, redis.pcall, string.sub
local a, out = ARGV[1] + 0, {}
local t = a > 0 and call('TIME')
local k, v = 3 * a, 2 + 2 * a                  -- the last key and the last argument of the acquisitions
-- if guarded: k, v = k + 1, v + 1
-- if guarded: marker, guard = KEYS[k], ARGV[v]
-- if guarded: if resting(t[1] * 1000000 + t[2]) then
-- if guarded:   t = false
-- if guarded:   for i = 1, a do out[i] = 0 end
-- if guarded: end
if t then
  local n, now                                 -- n: the clock, rounded down; now: its text
  if ARGV[2] == '1' then
    now = sub('000000000' .. t[1], -10) .. sub('00000' .. t[2], -6)
    n = now + 0
  else
    n = t[1] * 1000000 + t[2]
    n = n - n % ARGV[2]
    now = digits(n)
  end
  local used = call('EXISTS', unpack(KEYS, 1, 2 * a)) > 0
  local held, waits
  if used then
    held, waits = call('MGET', unpack(KEYS, 1, a)), call('EXISTS', unpack(KEYS, a + 1, 2 * a)) > 0
  end
  local got = call('MGET', unpack(KEYS, 2 * a + 1, 3 * a))
  local drawn, set, m = {}, {}, 0              -- drawn: the counters so far, because two locks may share a slot
  for i = 1, a do
    local c = not (used and (held[i] or waits and call('EXISTS', KEYS[a + i]) == 1)) and now
    local f = KEYS[2 * a + i]
    local last = drawn[f] or got[i]
    if c and not last and call('EXISTS', f) == 1 then c = nil end    -- not a string, and not of this library
    if c and (n == 0 or last and (#last ~= 16 or last >= now)) then
      local next = math.max((tonumber(last) or 0) + 1, n)
      c = next < 2^53 and digits(next)
    end
    if c then
      drawn[f], set[m + 1], set[m + 2] = c, f, c
      m = m + 2
    end
    out[i] = c or 0
  end
  -- The counters come first. If they are refused, because the server is out of memory, no lock is without its counter.
  local refused = m > 0 and try('MSET', unpack(set)).err
  for i = 1, a do
    local c = out[i]
    if c ~= 0 then
      -- NX, because the same lock may be there twice, and because a key that is no string was not seen above.
      local r = not refused and try('SET', KEYS[i], c .. ARGV[2 + a + i], 'PX', ARGV[2 + i], 'NX')
      out[i] = r and r.ok and (c == now and n or c + 0) or 0
    end
  end
end
if not KEYS[2] and try('GET', KEYS[1]) == ARGV[3] then
  return try('DEL', KEYS[1]) == 1 and 1 or 0
elseif KEYS[k + 1] then
  local got, del, m = call('MGET', unpack(KEYS, k + 1)), {}, 0
  for i = 1, #got do
    local has, want = got[i], ARGV[v + i]
    -- The text after the counter is equal if the owner has the lock and nobody waits for it.
    if has == want or has and sub(has, 17) == sub(want, 17) and sub(has, 1, 16) <= sub(want, 1, 16) then
      m = m + 1
      del[m] = KEYS[k + i]
      out[a + i] = 1
    else
      out[a + i] = 0
    end
  end
  if m > 0 and type(try('DEL', unpack(del))) ~= 'number' then
    for i = 1, #got do out[a + i] = 0 end
  end
end
return out[2] and out or out[1]
