-- Say whether a lock is still that of a lease, and no newer token was issued. This changes nothing.
--
-- KEYS: 1 lock  2 waiters and tombstones      (one hash slot)
-- ARGV: 1 "token|owner|node|label", the token with 16 digits
-- reply: as that of extend.lua, with 1 for yes
-- include value.lua
-- A replica would answer with what it has been sent so far. It refuses this command, which writes nothing, and so does
-- a master that has too few replicas to write. A server that is out of memory does not.
redis.call('HDEL', KEYS[2], '')
local cur = redis.pcall('GET', KEYS[1])
if type(cur) == 'table' then return string.find(cur.err, 'WRONGTYPE', 1, true) and 4 or cur end
local text = string.sub(ARGV[1], 17)
local c, k = mine(cur, text)
if not c then
  if k > 0 then return 32 * k end
  return cur and cur ~= 'hold:' .. string.match(text, '^|([^|]*)|') and 4 or 0
end
return c > string.sub(ARGV[1], 1, 16) and 3 or 1
