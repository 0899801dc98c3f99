-- Returns the text of a counter: 16 digits. tostring rounds to 14 digits. '%016.0f' costs twice as much, which is more
-- than a command. A whole counter is too large for '%d' on servers of 32 bits.
local function digits(c)
  local low = c % 100000000
  return string.format('%08d%08d', (c - low) / 100000000, low)
end
