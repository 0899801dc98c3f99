-- The part that all releases share. undo deletes the lock if it belongs to the owner of text.
-- include value.lua
-- include tombstone.lua

-- tomb is the life of the tombstone in ms, or "0" if the outcome of the acquisition is known. rest is for how many ms
-- nobody may have the lock after its release, or "0". token, with 16 digits, is that of the lease; with nines only,
-- nobody asks whether there is a newer one.
--
-- A release without a tombstone deletes the owner's lock under any number of a node, so that nothing is left behind if
-- an address has moved. A release with a tombstone, whose acquisition is in doubt, compares the number. A lock under
-- another number is the vote of another node, for a lease that may be valid. The release of that node will find it.
--
-- Returns
--   0: nobody has the lock, maybe because of an earlier delivery of this release; or it is another vote of this owner
--   1: deleted, and no newer token was issued here
--   2: deleted by an earlier delivery of this release
--   3: deleted, but a newer token was issued
--   4: another owner has the lock, or it was taken away by force
--   32 k + 1, 32 k + 3: like 1 and 3, but what was deleted was the vote of the owner's node k
--   an error reply
local function undo(lock, hash, text, tomb, rest, token)
  local r = 0
  local got = redis.pcall('MGET', lock)        -- nil for what is not a string
  if got.err then return got end
  local cur = got[1]
  local c, k = mine(cur, text)
  local o, number = string.match(text, '^|([^|]*)|(%d+)')
  if c or k > 0 and tomb == '0' then
    r = (c or string.sub(cur, 1, 16)) > token and 3 or 1
    -- The value of a rest is not the owner's, so a late extension and another delivery of this release do not change
    -- it. While a slot of a Redis Cluster migrates, the server refuses a SET after the DEL. When it is out of memory,
    -- it allows a SET only after the DEL.
    local function keep() return rest ~= '0' and not redis.pcall('SET', lock, 'hold:' .. o, 'PX', rest).err end
    if not keep() then
      redis.call('DEL', lock)
      keep()
    end
    r = r + 32 * k
  elseif k == 0 and (cur and cur ~= 'hold:' .. o or not cur and buried(hash, o) == 'f') then
    r = 4                                      -- 'f': see force.lua
  end
  if tomb ~= '0' then                          -- for an acquisition that is executed after this
    local d = 'd' .. number
    if r % 4 == 0 and buried(hash, o) == d then return 2 end
    bury(hash, o, r == 1 and d or 'x', tomb)
  end
  return r
end
