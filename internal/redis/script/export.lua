-- Pass a held lock on to whoever has a text: replace the owner value by that of the text; see package transfer. No
-- request of the owner changes the lock any more then. This is idempotent, and never creates the key.
--
-- KEYS: 1 lock
--       2 waiters and tombstones: if a request to acquire the lock for its owner may still be executed (one hash slot)
-- ARGV: 1 "|owner|1|label"  2 "|owner value of the text|1|"  3 token of the lease, with 16 digits
--       4 "ttl:tomb": TTL in ms; with the key 2, the life of a tombstone in ms
-- reply: 1 done, maybe by an earlier delivery | 0, 3, 4: as of extend.lua
-- include value.lua
-- include tombstone.lua
local cur = redis.pcall('GET', KEYS[1])
if type(cur) == 'table' then return string.find(cur.err, 'WRONGTYPE', 1, true) and 4 or cur end
local ttl, tomb = string.match(ARGV[4], '^(%d+):(%d+)$')
if KEYS[2] then bury(KEYS[2], string.match(ARGV[1], '^|([^|]*)|'), 'x', tomb) end
if mine(cur, ARGV[2]) then                     -- delivered twice: the TTL stays. There is a write, as in claim.lua
  redis.call('PEXPIRE', KEYS[1], math.max(1, redis.call('PTTL', KEYS[1])))
  return 1
end
local c = mine(cur, ARGV[1])
if not c then return cur and string.sub(cur, 1, 5) ~= 'hold:' and 4 or 0 end
if c > ARGV[3] then return 3 end
-- The label and the mark stay. The counter becomes the token, which may be one of several from the counter on.
redis.call('SET', KEYS[1], ARGV[3] .. ARGV[2] .. string.match(cur, '^%d+|[^|]*|%d+|(.*)$'), 'PX', ttl)
return 1
