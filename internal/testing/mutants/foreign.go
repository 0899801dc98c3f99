package main

// foreignMutants are bugs in how waiters learn of the release of another library, which notifies nobody.
var foreignMutants = []mutant{
	foreign("all waiters poll", "internal/script/queue.lua", "    if alive(h) then return 0 end\n", "",
		test("internal/script", "TestOneWaiter")),
	foreign("waiters poll for locks of this library", "internal/script/queue.lua", "return v and not parts(v) and",
		"return v and", test("internal/script", "TestNobodyPolls"), test("internal/node", "TestWaitersCostNothing")),
	foreign("waiters poll for a lock that is kept", "internal/script/queue.lua", " and string.sub(v, 1, 5) ~= 'hold:'", "",
		test("internal/script", "TestNobodyPolls"), test("internal/node", "TestNobodyPolls")),
	foreign("nobody polls", "internal/script/queue.lua", "if not foreign(cur) then return 0 end", "do return 0 end",
		test("internal/script", "TestOneWaiter"), test("redlock", pollsBehind), test("single", "TestWaiterPolls")),
	foreign("a dead waiter keeps the others from polling", "internal/script/queue.lua", "if alive(h) then return 0 end",
		"do return 0 end", test("internal/script", "TestOneWaiter"), test("internal/node", "TestNextWaiterPolls")),
	foreign("a waiter that has the turn does not poll", "internal/script/turn.lua", "foreign(cur) and POLL or 0", "0 or 0",
		test("internal/script", "TestOneWaiterForTheTurn"), test("internal/node", "TestTurnPolls")),
	foreign("waiters behind the one that has the turn poll", "internal/script/turn.lua", "left >= 0 and not holder and",
		"left >= 0 and", test("internal/script", "TestOneWaiterForTheTurn"), test("internal/node", "TestTurnPolls")),
	foreign("who has to poll waits for a heartbeat", "internal/node/waiter.go", "case p.Poll:", "case p.Poll && p.More:",
		test("internal/node", pollsBehind)),
	foreign("a poll comes after the end of the TTL", "internal/node/waiter.go",
		"	if p.Left > 0 { // the holder may have died", "	if p.Left > 0 && !p.Poll {",
		test("internal/node", "TestWaiterTakesTheLockWhenAnotherLibraryHasDied")),
}

const pollsBehind = "TestFirstWaiterPollsBehindAnotherLibrary"

func foreign(name, file, from, to string, killers ...killer) mutant {
	return mutant{"behind another library: " + name, []patch{{file, from, to}}, killers}
}
