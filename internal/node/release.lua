-- Delete a lock if this owner holds it, or leave word that an attempt was given up.
--
-- KEYS: 1 lock  2 tombstone of this attempt  3 fencing counter      (one hash slot)
-- ARGV: 1 owner  2 life of the tombstone in ms, "0" if the outcome of the acquisition is known
--       3 token of this lease, "0" = do not look
-- reply: 1 deleted, and no newer token was issued here | 2 deleted by an earlier delivery of this release
--        | 3 deleted, but a newer token had been issued | 0 not held by this owner
local r = 0
local cur = redis.pcall('GET', KEYS[1])
if type(cur) == 'table' and not string.find(cur.err, 'WRONGTYPE', 1, true) then return cur end
if cur == ARGV[1] then
  redis.call('DEL', KEYS[1])                  -- before any SET: DEL is allowed when the server is out of memory
  r = 1
  if ARGV[3] ~= '0' and (tonumber(redis.call('GET', KEYS[3]) or '0') or 0) > tonumber(ARGV[3]) then r = 3 end
end
if ARGV[2] ~= '0' then                        -- an acquisition that arrives after this one finds the tombstone
  if r == 0 and redis.call('GET', KEYS[2]) == 'd' then return 2 end
  redis.pcall('SET', KEYS[2], r == 1 and 'd' or 'x', 'PX', ARGV[2])
end
return r
