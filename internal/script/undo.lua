-- The part that all releases share. undo deletes the lock if it belongs to o.
--
-- tomb is the life of the tombstone in ms, or "0" if the outcome of the acquisition is known. rest is for how many ms
-- nobody may have the lock after its release, or "0". token is that of the lease; with "0", undo does not compare it.
--
-- A release without a tombstone deletes the owner's lock under any number (see alias.lua), so that nothing is left
-- behind if an address has moved. A release with a tombstone, whose acquisition is in doubt, compares the number. A
-- lock under another number is the vote of another node, for a lease that may be valid. The release of that node will
-- find it.
--
-- Returns as first result
--   0: nobody has the lock, maybe because of an earlier delivery of this release; or it is another vote of this owner
--   1: deleted, and no newer token was issued here
--   2: deleted by an earlier delivery of this release
--   3: deleted, but a newer token was issued
--   4: another owner has the lock, or it was taken away by force
--   32 k + 1, 32 k + 3: like 1 and 3, but what was deleted was the vote of the owner's node k
--   an error reply
-- and the counter as second.
local function undo(lock, gone, fence, o, tomb, rest, token)
  local r = 0
  local got = redis.pcall('MGET', lock, fence)
  if got.err then return got end
  local cur, k = got[1], 0
  if cur ~= o then
-- include alias.lua
    k = alias(cur, o)
  end
  if cur == o or k > 0 and tomb == '0' then
    redis.call('DEL', lock)                    -- before any SET: DEL is allowed when the server is out of memory
    r = 1
    if token ~= '0' and (tonumber(got[2] or '0') or 0) > tonumber(token) then r = 3 end
    -- The value is not the owner's, so a late extension and another delivery of this release do not change it.
    if rest ~= '0' then redis.pcall('SET', lock, 'hold:' .. o, 'PX', rest) end
    r = r + 32 * k
  elseif k == 0 and (cur and cur ~= 'hold:' .. o or not cur and redis.call('GET', gone) == 'f') then
    r = 4                                      -- 'f': see force.lua
  end
  if tomb ~= '0' then                          -- for an acquisition that is executed after this
    local d = 'd' .. (string.match(o, '|.*$') or '')
    if r % 4 == 0 and redis.call('GET', gone) == d then return 2, got[2] end
    redis.pcall('SET', gone, r == 1 and d or 'x', 'PX', tomb)
  end
  return r, got[2]
end

