-- The restart guard. A server that restarts, fails over or is flushed may forget locks. It then rests: it grants no
-- lock until all locks that it may have forgotten have ended. The marker, "incarnation:since in us:guard in ms", is
-- part of the data, so the server decides by itself whether it may have forgotten anything.
--
-- The incarnation is the ID of the server's replication history. A master has a new one after a restart, and a replica
-- after its promotion. The ID of the process would not do: a server that was replaced and is promoted again, without a
-- restart, has lost its last writes and may have an old marker with its own ID.
local marker, guard                            -- the key, and how long to rest in ms; the including script sets them
local grants                                   -- true once this script knows that the server does not rest

-- Returns the ID of the server's history, or nil and the reply that says why it is not known. The ID is probably the
-- expected one, if that is not nil: a search for a plain text takes a third off the time of the guard.
local function incarnation(expected)
  local info = redis.pcall('INFO', 'replication')
  if type(info) ~= 'string' then return nil, {-5, 0} end
  local same = expected and string.find(info, 'master_replid:' .. expected .. '\r', 1, true)
  local id = same and expected or string.match(info, 'master_replid:(%w+)')
  if not id then return nil, {-5, 0} end
  -- A replica has the ID of its master, and forgets what it grants if it may write at all.
  if string.find(info, 'role:master', 1, true) then return id end
  return nil, redis.error_reply('READONLY a replica grants no locks')
end

-- Returns nil if the server may grant locks now, in us by its clock. Otherwise it returns the reply for the caller:
--   {-3, ms}: the server rests for that long
--   {-4, guard}: the clients that wrote the marker have another guard
--   {-5, 0}: INFO is refused, or does not say what is needed
--   an error: the marker had to be written, and the server has refused that
-- A marker of the future is from before the clock was set back. It is replaced, because the rest must end.
local function resting(now)
  local value, find, sub = redis.call('GET', marker) or '', string.find, string.sub
  local i = find(value, ':', 1, true)          -- a pattern for all parts costs three times as much
  local j = i and find(value, ':', i + 1, true)
  local of, since, has = j and sub(value, 1, i - 1), j and tonumber(sub(value, i + 1, j - 1)), j and sub(value, j + 1)
  local id, why = incarnation(of)
  if not id then return why end
  if of and has ~= guard then
    if string.find(value, '^%w+:%d+:%d+$') then return {-4, tonumber(has)} end
    of = nil                                   -- this is no marker, and is replaced
  end
  if of ~= id or not (since and since >= 0 and since <= now) then
    local r = redis.pcall('SET', marker, id .. ':' .. string.format('%.0f', now) .. ':' .. guard)
    return r.err and r or {-3, tonumber(guard)}
  end
  local left = tonumber(guard) - math.floor((now - since) / 1000)
  if left > 0 then return {-3, left} end
  grants = true
end
