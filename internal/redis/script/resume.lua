-- Take over a lock that was passed on: replace the owner value of the text by that of this attempt, and draw a token.
-- This never takes a free lock. It is idempotent for its owner.
--
-- An attempt whose outcome is unknown leaves no tombstone. It is undone by two releases, of which the first is of the
-- owner value of the text: once the lock does not have that, the attempt finds nothing.
--
-- KEYS: 1 lock  2 fencing counter      (one hash slot)
-- ARGV: 1 "|owner|1|label", see value.lua; the owner is unique to this attempt
--       2 "|owner value of the text|1|"  3 TTL in ms
--       guarded: 3 "ttl:guard", see guard.lua, and the key 3 marker
-- reply: counter: granted | 0 nobody has the lock | -1 another owner has the lock
--        | {-3, ms}, {-4, guard}, {-5, 0}: see guard.lua
-- include value.lua
-- include tombstone.lua
-- include mint.lua
-- if guarded: -- include guard.lua
local cur = redis.pcall('GET', KEYS[1])
if type(cur) == 'table' then return string.find(cur.err, 'WRONGTYPE', 1, true) and -1 or cur end
local c, last = mine(cur, ARGV[1]), mine(cur, ARGV[2])
if not c and not last then return cur and string.sub(cur, 1, 5) ~= 'hold:' and -1 or 0 end
local ttl = ARGV[3]
-- if guarded: marker, ttl, guard = KEYS[3], string.match(ARGV[3], '^(%d+):(%d+)$')
-- if guarded: local rests = resting(clock())
-- if guarded: if rests then return rests end
if c then                                      -- delivered twice: the token and the TTL stay, as in export.lua
  redis.call('PEXPIRE', KEYS[1], math.max(1, redis.call('PTTL', KEYS[1])))
  return tonumber(c)
end
fence = KEYS[2]
c = mint(1, tonumber(last))                    -- greater than the last token, also if the counter was lost
redis.call('SET', KEYS[1], c .. ARGV[1] .. (string.sub(cur, -1) == '+' and '+' or ''), 'PX', ttl)
return tonumber(c)
