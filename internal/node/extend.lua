-- Prolong a held lock. Never creates the key, never shortens its life.
--
-- KEYS: 1 lock  2 fencing counter      (one hash slot)
-- ARGV: 1 owner  2 TTL in ms  3 token of this lease
-- reply: 1 extended | 0 not held by this owner, or a newer token has been issued | 32 k: held by this owner as its node k
local keep = 86400000                          -- as in acquire.lua
local cur = redis.pcall('GET', KEYS[1])
if type(cur) == 'table' then return string.find(cur.err, 'WRONGTYPE', 1, true) and 0 or cur end
if cur ~= ARGV[1] then
-- include alias.lua
  return 32 * alias(cur, ARGV[1])
end
local f, token = tonumber(redis.call('GET', KEYS[2]) or '0') or 0, tonumber(ARGV[3])
if f > token then return 0 end                -- a second copy of our key, granted after somebody else's turn
-- The counter of a lock that is held for long must not expire under it. Repairs are best effort (pcall): extending works
-- while the server is out of memory.
if f < token then redis.pcall('SET', KEYS[2], ARGV[3]) end
if redis.call('PTTL', KEYS[2]) < keep then redis.call('PEXPIRE', KEYS[2], keep) end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
