-- Extend a held lock. This never creates the key, and never shortens its life.
--
-- KEYS: 1 lock  2 fencing counter      (one hash slot)
-- ARGV: 1 "|owner|node|label"  2 TTL in ms  3 token of this lease, with 16 digits
-- reply: 1 extended, plus 16 if the lock is marked: somebody waits for it, or has waited
--        | 0 nobody has the lock | 3 a newer token was issued | 4 another owner has the lock
--        | 32 k: this owner has the lock here as its node k
-- include value.lua
local cur = redis.pcall('GET', KEYS[1])
if type(cur) == 'table' then return string.find(cur.err, 'WRONGTYPE', 1, true) and 4 or cur end
local c, k = mine(cur, ARGV[1])
if not c then
  if k > 0 then return 32 * k end
  return cur and cur ~= 'hold:' .. string.match(ARGV[1], '^|([^|]*)|') and 4 or 0
end
if c > ARGV[3] then return 3 end              -- an acquisition of this owner was executed once more
if c < ARGV[3] then                            -- as in raise.lua, but a refusal does not prevent the extension
  local r = 1
  if (tonumber(redis.call('GET', KEYS[2]) or '0') or 0) < tonumber(ARGV[3]) then
    r = redis.pcall('SET', KEYS[2], ARGV[3])
  end
  if r == 1 or not r.err then redis.pcall('SETRANGE', KEYS[1], 0, ARGV[3]) end
end
-- There is a write in any case, as in claim.lua: replicas may lack an earlier extension by more than this one.
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])))
return string.sub(cur, -1) == '+' and 17 or 1
