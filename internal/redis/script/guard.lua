-- The restart guard. A server that restarts, fails over or is flushed may forget locks. It then rests: it grants no
-- lock until all locks that it may have forgotten have ended. The marker, "incarnation:since in us:guard in ms", is
-- part of the data, so the server decides by itself whether it may have forgotten anything.
--
-- The incarnation is the ID of the server's replication history. A master has a new one after a restart, and a replica
-- after its promotion. The ID of the process would not do: a server that was replaced and is promoted again, without a
-- restart, has lost its last writes and may have an old marker with its own ID.
local marker, guard                            -- the key, and how long to rest in ms; the including script sets them
local grants                                   -- true once this script knows that the server does not rest

-- Returns the ID of the server's history, or nil and the reply that says why it is not known. Searches for plain texts
-- cost less than patterns.
local function incarnation()
  local find, info = string.find, redis.pcall('INFO', 'replication')
  if info.err then return nil, {-5, 0} end     -- a text has no fields
  local _, i = find(info, 'master_replid:', 1, true)
  local j = i and find(info, '\r', i, true)
  if not j or j == i + 1 then return nil, {-5, 0} end
  -- A replica has the ID of its master, and forgets what it grants if it may write at all.
  if find(info, 'role:master', 1, true) then return string.sub(info, i + 1, j - 1) end
  return nil, redis.error_reply('READONLY a replica grants no locks')
end

-- Returns nil if the server may grant locks now, in us by its clock. Otherwise it returns the reply for the caller:
--   {-3, ms}: the server rests for that long
--   {-4, guard}: the clients that wrote the marker have another guard
--   {-5, 0}: INFO is refused, or does not say what is needed
--   an error: the marker had to be written, and the server has refused that
-- A marker of the future is from before the clock was set back. It is replaced, because the rest must end.
local function resting(now)
  local value = redis.call('GET', marker) or ''
  local id, why = incarnation()
  if not id then return why end
  -- The marker is compared as a whole, because each call of a function costs as much as a comparison of texts.
  local since = string.sub(value, #id + 2, -#guard - 2)
  since = value == id .. ':' .. since .. ':' .. guard and tonumber(since)
  if since and since >= 0 and since <= now then
    local left = guard * 1000 - (now - since)  -- in us
    if left > 0 then return {-3, math.ceil(left / 1000)} end
    grants = true
    return
  end
  local has = string.match(value, '^%w+:%d+:(%d+)$')
  if has and has ~= guard then return {-4, tonumber(has)} end
  local r = redis.pcall('SET', marker, id .. ':' .. string.format('%.0f', now) .. ':' .. guard)
  return r.err and r or {-3, tonumber(guard)}
end
