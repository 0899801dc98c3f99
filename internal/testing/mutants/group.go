package main

// groupMutants are bugs in groups of permits on Redis.
var groupMutants = []mutant{
	onRedis("newcomers overtake those who wait", "groupqueue.lua", "if not waits then\n  local got", "do\n  local got"),
	onRedis("a weight is overtaken for ever", "group.lua", "    if n then some, with = fit(n + 0, weight + 0) end\n",
		`    if n then some, with = fit(n + 0, weight + 0) end
    if n and not some and order[2] then
      h = order[2]
      ttl, label, wants = alive(h)
      n, weight, chan = string.match(wants or '', '^(%d+):(%d+):(.*)$')
      if n then some, with = fit(n + 0, weight + 0) end
    end
`),
	onRedis("a freed place that nobody is told of", "grouprelease.lua", "redis.call('EXISTS', queue) == 1 then",
		"redis.call('EXISTS', queue) == 2 then"),
	onRedis("what is freed is handed to one", "group.lua", "      r = 1\n", "      do return 1, c, numbers end\n"),
	onRedis("a place is handed to two", "group.lua", "  taken, unsaved = with, false\n", "  unsaved = false\n"),
	onRedis("what is freed is not written", "grouprelease.lua", "if unsaved then save() end", ""),
	onRedis("who ends keeps its places", "group.lua", "    free(table.concat(of, ','))\n", ""),
	onRedis("an expired place is not free", "group.lua", "  if front[2] + 0 <= clock() then", "  if false then"),
	onRedis("who comes back late has an entry twice", "group.lua", "if c and (redis.call('ZSCORE'",
		"if false and (redis.call('ZSCORE'"),
	onRedis("nobody learns that more has ended", "group.lua", "    more = front[1] ~= nil", "    more = false"),
	onRedis("a holder is named that is not in the way", "groupqueue.lua", "if low and low + 0 < n + 0 then",
		"if low then"),
	onRedis("a holder is wanted that is not in the way", "groupinspect.lua", " and tonumber(n) > low then", " then"),
	onRedis("a late claim takes a place given to another", "groupclaim.lua", "if not c or till <= now then",
		"if not c then"),
	onRedis("an entry is extended after its end", "groupextend.lua", "if not c or till <= now then", "if not c then"),
	onRedis("an extension shortens", "groupextend.lua", "math.max(till, now + ARGV[2] * 1000)", "now + ARGV[2] * 1000"),
	onRedis("a lease is extended that is another one", "groupextend.lua", "if c ~= ARGV[3] then return 3 end", ""),
	onRedis("a place beyond the caller's limit", "group.lua", "local function fit(n, weight)\n",
		"local function fit(n, weight)\n  n = n + 1\n"),
	onRedis("a part of what is wanted is granted", "group.lua", "    if a > n then return nil end\n",
		"    if a > n and #ranges == 0 then return nil elseif a > n then break end\n"),
	onRedis("a grant by somebody else lasts for the TTL", "group.lua", "mine and ttl or math.min(tonumber(ttl), CLAIM)",
		"ttl"),
	onRedis("the first that has died is not passed", "group.lua", "(self and order[2] == self and", "(false and"),
	onRedis("the first is passed although it lives", "group.lua", "publish(chan, '') == 0)", "publish(chan, '') ~= -1)"),
	onRedis("a group that was emptied has no end", "group.lua", "1, true) then life = 0 end", "1, true) then end"),
	onRedis("the entries end with the first of them", "groupentry.lua", "  local longer = ms > life\n",
		"  local longer = false\n"),
	onRedis("half of a group counts", "group.lua", "  if life == 0 then   ", "  if false then   "),
	onRedis("locks of permits are not seen", "groupqueue.lua", "then return {-6} end", "then end"),
	onRedis("what comes after its release is executed", "groupqueue.lua",
		"  if buried(waiters, o) then return {-1} end\n", ""),
	onRedis("permits are not kept after their release", "grouprelease.lua", "if rest == '0' or", "if true or"),
	onRedis("what is kept twice is never free", "grouprelease.lua",
		" or redis.call('HGET', entries, 'hold:' .. o) then", " then"),
	onRedis("who leaves stays in the queue", "grouprelease.lua",
		"if token == '9999999999999999' or tomb ~= '0' then drop(o) end", ""),
	onRedis("holders do not learn that others wait", "groupqueue.lua", "    marked = '+'\n", ""),
	onRedis("permits by force leave no tombstone", "groupforce.lua", "  bury(waiters, o, 'f', tomb)", "  --"),
	onRedis("a server that rests hands on", "group.lua",
		"-- if guarded: if not grants and resting(clock()) then return 0 end", ""),
	onRedis("a server that rests grants", "groupqueue.lua",
		"  -- if guarded: local rests = not grants and resting(clock())\n", "  -- if guarded: local rests\n"),
	onRedis("a server that rests lets permits be claimed", "groupclaim.lua",
		"-- if guarded: if rests then return rests end", ""),
}

func onRedis(name, file, old, changed string) mutant {
	return mutant{"groups on Redis: " + name, []patch{{"internal/redis/script/" + file, old, changed}},
		[]killer{test("internal/redis/script", "Group|Permits")}}
}
