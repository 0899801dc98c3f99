package main

// foreignMutants are bugs in how waiters learn of the release of another library, which notifies nobody.
var foreignMutants = []mutant{
	foreign("all waiters poll", "internal/redis/script/queue.lua", "    if alive(h) then return 0 end\n", "",
		test("internal/redis/script", "TestOneWaiter")),
	foreign("waiters poll for locks of this library", "internal/redis/script/queue.lua", "return v and not parts(v) and",
		"return v and", test("internal/redis/script", "TestNobodyPolls"), test("internal/redis/node",
			"TestWaitersCostNothing")),
	foreign("waiters poll for a lock that is kept", "internal/redis/script/queue.lua",
		" and string.sub(v, 1, 5) ~= 'hold:'", "",
		test("internal/redis/script", "TestNobodyPolls"), test("internal/redis/node", "TestNobodyPolls")),
	foreign("nobody polls", "internal/redis/script/queue.lua", "if not foreign(cur) then return 0 end", "do return 0 end",
		test("internal/redis/script", "TestOneWaiter"), test("redlock", pollsBehind)),
	foreign("a dead waiter keeps the others from polling", "internal/redis/script/queue.lua",
		"if alive(h) then return 0 end",
		"do return 0 end", test("internal/redis/script", "TestOneWaiter"), test("internal/redis/node",
			"TestNextWaiterPolls")),
	foreign("a waiter that has the turn does not poll", "internal/redis/script/turn.lua", "foreign(cur) and POLL or 0",
		"0 or 0",
		test("internal/redis/script", "TestOneWaiterForTheTurn"), test("internal/redis/node", "TestTurnPolls")),
	foreign("waiters behind the one that has the turn poll", "internal/redis/script/turn.lua",
		"left >= 0 and not holder and",
		"left >= 0 and", test("internal/redis/script", "TestOneWaiterForTheTurn"), test("internal/redis/node",
			"TestTurnPolls")),
	foreign("who has to poll waits for a heartbeat", "internal/redis/node/waiter.go", "case p.Poll:",
		"case p.Poll && p.More:",
		test("internal/redis/node", pollsBehind)),
	foreign("a poll comes after the end of the TTL", "internal/redis/node/waiter.go",
		"	if p.Left > 0 { // the holder may have died", "	if p.Left > 0 && !p.Poll {",
		test("internal/redis/node", "TestWaiterTakesTheLockWhenAnotherLibraryHasDied")),
}

const pollsBehind = "TestFirstWaiterPollsBehindAnotherLibrary"

func foreign(name, file, from, to string, killers ...killer) mutant {
	return mutant{"behind another library: " + name, []patch{{file, from, to}}, killers}
}
