-- Raise the fencing counter of a hash slot, and never lower it. A slot without a counter gets one, because the clock
-- may be behind. The counter is written in any case, so that replicas can confirm it.
--
-- KEYS: 1 fencing counter
-- ARGV: 1 what tokens are to be greater than, with 16 digits
-- reply: 1
-- include digits.lua
local last = tonumber(redis.call('GET', KEYS[1]) or '0') or 0
if not (last < 2^53 - 128) then last = 0 end    -- it was overwritten; see mint.lua
redis.call('SET', KEYS[1], digits(math.max(last, tonumber(ARGV[1]))))
return 1
