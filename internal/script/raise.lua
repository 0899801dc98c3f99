-- Raise the fencing counter of a held lock to the token that its attempt has chosen. This is the second round of
-- Redlock, for nodes that granted with a lower counter. Only the owner may raise it. So only the holder of a lock
-- changes its counter, and a counter at the token while the owner has the key was set by that owner.
--
-- KEYS: 1 lock  2 fencing counter      (one hash slot)
-- ARGV: 1 owner  2 token
-- reply: 1 accepted (also on repetition) | 0 refused: not held by this owner, or the counter is past the token
--        | 32 k: this owner has the lock here as its node k
local keep = 86400000                          -- as in acquire.lua
local cur = redis.call('GET', KEYS[1])
if cur ~= ARGV[1] then
-- include alias.lua
  return 32 * alias(cur, ARGV[1])
end
local f, token = tonumber(redis.call('GET', KEYS[2]) or '0') or 0, tonumber(ARGV[2])
if f > token then return 0 end
if f < token then
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  redis.call('SET', KEYS[2], ARGV[2])
  redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', math.floor(math.max(token, now) / 1000) + keep))
end
return 1
