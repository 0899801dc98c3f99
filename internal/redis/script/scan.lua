-- Return some of the keys of this server, those of all hash slots. A step is short, however many keys there are. This
-- changes nothing.
--
-- KEYS: 1 a name in a hash slot, by which a client of a Redis Cluster finds the server; it is not used
-- ARGV: 1 cursor, "0" at the beginning  2 pattern of the keys  3 how many keys to look at  4 "1" on a Redis Cluster
-- reply: {id, line, cursor, key…}. A cursor is worth something only to the process that has made it, with the data that
--        it had. The id is that of both. The line is what the server says about itself among the nodes of its cluster.
--        The last cursor is "0"
local function info(section)
  local text = '\n' .. redis.call('INFO', section)
  return function(name) return string.match(text, '\n' .. name .. ':([^\r]*)') or '' end
end
local data = info('replication')
if data('role') ~= 'master' then return redis.error_reply('READONLY a replica may not know all locks') end
local line = ''
if ARGV[4] == '1' then
  for l in string.gmatch(redis.call('CLUSTER', 'NODES'), '[^\n]+') do
    if string.find(l, '^%S+ %S+ myself') then line = l end
  end
end
local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local reply = {info('server')('run_id') .. data('master_replid'), line, page[1]}
for i, key in ipairs(page[2]) do reply[3 + i] = key end
return reply
