-- Tokens of a node that decides alone; see acquire.lua.
local keep = 86400000                          -- as in acquire.lua
local fence                                    -- the counter's key; the including script sets it
local us                                       -- the server's clock, after the first call
local function clock()
  if not us then
    local t = redis.call('TIME')
    us = t[1] * 1000000 + t[2]
  end
  return us
end

-- Returns the next token after f, the reply of GET for the counter; see acquire.lua.
local function mint(f)
  local c = math.max((tonumber(f or '0') or 0) + 1, clock())
  redis.call('SET', fence, string.format('%.0f', c), 'PX',
    string.format('%.0f', math.floor((c - clock()) / 1000) + keep))
  return c
end
