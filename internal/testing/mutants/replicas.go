package main

// replicaMutants are bugs in waiting for replicas.
var replicaMutants = []mutant{
	{"a shortfall of replicas is ignored",
		[]patch{{"internal/redis/pipeline/exchange.go", "return c.short", "return nil"}},
		[]killer{test("internal/redis/pipeline", "TestShortfall"), test("internal/redis/node", "TestShortfallIsUndone")}},
	{"extensions do not wait for replicas",
		[]patch{{"internal/redis/script/commands.go", ".granting(extends)", ""}},
		[]killer{test("internal/redis/script", "TestGrants"), test("internal/redis/node", "TestExtensionNeedsReplicas")}},
	{"claims do not wait for replicas",
		[]patch{{"internal/redis/script/commands.go", "numbers).granting(handsOver)", "numbers)"}},
		[]killer{test("internal/redis/script", "TestGrants"), test("internal/redis/node", "TestWaiterAndReplicas")}},
	{"WAIT blocks the connection of all calls",
		[]patch{{"drivers/rueidisdriver/rueidis.go", "return strings.EqualFold(cmd[0], \"WAIT\")", "return len(cmd) == 0"}},
		[]killer{test("drivers/rueidisdriver", "TestOpen/WaitBlocksNobodyElse")}},
	{"a claim that need not prolong the lock writes nothing",
		[]patch{{"internal/redis/script/claim.lua", "redis.call('PEXPIRE', KEYS[1], left)",
			"if left == tonumber(ttl) then redis.call('PEXPIRE', KEYS[1], left) end"}},
		[]killer{test("internal/redis/script", "TestWhatProlongsALockIsAWrite")}},
	{"an extension that need not prolong the lock writes nothing",
		[]patch{{"internal/redis/script/extend.lua", "redis.call('PEXPIRE', KEYS[1],",
			"if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1],"},
			{"internal/redis/script/extend.lua", "tonumber(ARGV[2])))", "tonumber(ARGV[2]))) end"}},
		[]killer{test("internal/redis/script", "TestWhatProlongsALockIsAWrite")}},
}
