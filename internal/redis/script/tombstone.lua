-- Tombstones. An attempt that was released with unknown outcome leaves one, so that it is not executed later. They are
-- fields of the hash that also has the waiters. A field "!owner" has "kind:deadline in ms".
local us                                       -- the server's clock, after the first call
local function clock()
  if not us then
    local t = redis.call('TIME')
    us = t[1] * 1000000 + t[2]
  end
  return us
end

-- Returns the kind of the owner's tombstone, or nil.
local function buried(hash, o)
  local kind, deadline = string.match(redis.call('HGET', hash, '!' .. o) or '', '^(%w+):(%d+)$')
  if kind and tonumber(deadline) * 1000 >= clock() then return kind end
end

-- The life of the hash is only ever prolonged, because others have tombstones and positions in it.
local function prolong(hash, ms)
  if redis.call('PTTL', hash) < tonumber(ms) then redis.call('PEXPIRE', hash, ms) end
end

-- Leaves a tombstone that lives for ms. An error is not reported, because the release itself has to succeed. HDEL comes
-- first, because a server that is out of memory accepts HSET only after another write. Each tombstone removes some that
-- are over, so that a lock that is contended for ever does not pile them up. The cursor is drawn by the clock.
local function bury(hash, o, kind, ms)
  local now = math.floor(clock() / 1000)
  redis.pcall('HDEL', hash, '!' .. o)
  local r = redis.pcall('HSET', hash, '!' .. o, kind .. ':' .. string.format('%.0f', now + ms))
  if type(r) == 'table' then return end
  prolong(hash, ms)
  local some = redis.pcall('HSCAN', hash, string.format('%.0f', clock() % 1048576), 'COUNT', 8)[2] or {}
  for i = 1, #some, 2 do
    local deadline = string.sub(some[i], 1, 1) == '!' and string.match(some[i + 1], ':(%d+)$')
    if deadline and tonumber(deadline) < now then redis.call('HDEL', hash, some[i]) end
  end
end
