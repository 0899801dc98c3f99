-- Raise the fencing counter of a held lock to the token that its attempt has chosen. This is the second round of
-- Redlock, for nodes that granted with a lower counter. Only the owner may raise it. So only the holder of a lock
-- changes the counter in its value, and a value with the token while the owner has the lock was set by that owner.
--
-- KEYS: 1 lock  2 fencing counter      (one hash slot)
-- ARGV: 1 "|owner|node|label"  2 token, with 16 digits
--       for several tokens: 3 the last of them, with 16 digits; the acquisition was for as many
-- reply: 1 accepted (also on repetition) | 0 refused: not held by this owner, or its counter is past the token
--        | 32 k: this owner has the lock here as its node k
-- include value.lua
local c, k = mine(redis.call('GET', KEYS[1]), ARGV[1])
if not c then return 32 * k end
if c > ARGV[2] then return 0 end
if c < ARGV[2] then
  -- The counter of the slot comes first. If the server refuses it, the lock stays as it was.
  local last = ARGV[3] or ARGV[2]
  if (tonumber(redis.call('GET', KEYS[2]) or '0') or 0) < tonumber(last) then
    redis.call('SET', KEYS[2], last)
  end
  redis.call('SETRANGE', KEYS[1], 0, ARGV[2])
end
return 1
