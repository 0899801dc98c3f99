package main

// replicaMutants are bugs in waiting for replicas.
var replicaMutants = []mutant{
	{"a shortfall of replicas is ignored",
		[]patch{{"internal/pipeline/exchange.go", "return c.short", "return nil"}},
		[]killer{test("internal/pipeline", "TestShortfall"), test("internal/node", "TestShortfallIsUndone")}},
	{"extensions do not wait for replicas",
		[]patch{{"internal/script/commands.go", ".granting(extends)", ""}},
		[]killer{test("internal/script", "TestGrants"), test("internal/node", "TestExtensionNeedsReplicas")}},
	{"claims do not wait for replicas",
		[]patch{{"internal/script/commands.go", "numbers).granting(handsOver)", "numbers)"}},
		[]killer{test("internal/script", "TestGrants"), test("internal/node", "TestWaiterAndReplicas")}},
	{"WAIT blocks the connection of all calls",
		[]patch{{"drivers/rueidis/rueidis.go", "return strings.EqualFold(cmd[0], \"WAIT\")", "return len(cmd) == 0"}},
		[]killer{test("drivers/rueidis", "TestOpen/WaitBlocksNobodyElse")}},
	{"a claim that need not prolong the lock writes nothing",
		[]patch{{"internal/script/claim.lua", "redis.call('PEXPIRE', KEYS[1], left)",
			"if left == tonumber(ttl) then redis.call('PEXPIRE', KEYS[1], left) end"}},
		[]killer{test("internal/script", "TestWhatProlongsALockIsAWrite")}},
	{"an extension that need not prolong the lock writes nothing",
		[]patch{{"internal/script/extend.lua", "redis.call('PEXPIRE', KEYS[1],",
			"if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1],"},
			{"internal/script/extend.lua", "tonumber(ARGV[2])))", "tonumber(ARGV[2]))) end"}},
		[]killer{test("internal/script", "TestWhatProlongsALockIsAWrite")}},
}
