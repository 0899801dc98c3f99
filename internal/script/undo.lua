-- What all releases share.
--
-- Deletes the lock if it is o's; tomb is the life of the tombstone in ms, "0" if the outcome of the acquisition is known;
-- rest, if not "0", is for how many ms nobody may have the lock; token that of the lease, "0" = do not look.
-- A release, which leaves no tombstone, deletes the owner's lock under any number (see alias.lua): addresses that have moved leave
-- nothing behind. One that leaves one, because the outcome is in doubt, compares the number: what is here under another one
-- is the vote of another node, of a lease that may be valid, and that node's release is to find it.
-- Returns the counter as second, and as first: 1 deleted, and no newer token was issued here | 2 deleted by an earlier delivery of this release
--         | 3 deleted, but a newer token had been issued | 4 another owner's, or taken away by force | 0 nobody's, which an
--         earlier delivery of this release may have brought about, or another vote of this owner's | an error reply
--         | 32 k + 1 or 3: the same, but what was deleted was the owner's node k
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
    -- Another owner's name: neither a late extension nor this release, delivered again, can touch it.
    if rest ~= '0' then redis.pcall('SET', lock, 'hold:' .. o, 'PX', rest) end
    r = r + 32 * k
  elseif k == 0 and (cur and cur ~= 'hold:' .. o or not cur and redis.call('GET', gone) == 'f') then  -- 'f': see force.lua
    r = 4
  end
  if tomb ~= '0' then                          -- an acquisition that arrives after this one finds the tombstone
    local d = 'd' .. (string.match(o, '|.*$') or '')
    if r % 4 == 0 and redis.call('GET', gone) == d then return 2, got[2] end
    redis.pcall('SET', gone, r == 1 and d or 'x', 'PX', tomb)
  end
  return r, got[2]
end

