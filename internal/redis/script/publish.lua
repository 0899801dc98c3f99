-- Publishes news on a channel, and returns how many subscribers this server has for it, or an error. The end of a
-- channel's name says whether it is a sharded one, which is what subscribers of a Redis Cluster have.
local function publish(chan, news)
  return redis.pcall(string.sub(chan, -8) == ':sharded' and 'SPUBLISH' or 'PUBLISH', chan, news)
end
