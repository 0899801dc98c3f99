-- Write the marker of the restart guard, if it is not there or not of this server, so that the server's rest begins.
-- With a second argument, write a marker that says that the server has forgotten nothing, and need not rest.
--
-- KEYS: 1 marker
-- ARGV: 1 guard in ms  2 "new", to trust the server
-- reply: 0: the server may grant locks | what guard.lua says
-- include guard.lua
marker, guard = KEYS[1], ARGV[1]
if ARGV[2] then
  local id, why = incarnation()
  if not id then return why end
  redis.call('GET', marker)                    -- fails if it is not a string, and not of this library
  redis.call('SET', marker, id .. ':0:' .. guard)
  return 0
end
local t = redis.call('TIME')
return resting(t[1] * 1000000 + t[2]) or 0
