package main

// wantedMutants are bugs in what holders learn of those that wait.
var wantedMutants = []mutant{
	wanted("a lease that has ended is wanted", "wanted.go", "l.err == nil && w != nil", "w != nil"),
	wanted("the store is asked about a lease that has ended", "wanted.go", "l.wanted == nil && l.err == nil",
		"l.wanted == nil"),
	wanted("callers that wait already do not count", "keyqueue.go", "q != nil && (q.local == nil ||",
		"q != nil && (q.local == nil && false ||"),
	wanted("a lock that is handed over is always wanted", "keyqueue.go",
		"(q.local == nil || q.waiting.Len() > 0)", "true"),
	wanted("callers that come do not count", "keyqueue.go", "\t\tl.want()\n\t}\n\tdelete", "\t\t_ = l\n\t}\n\tdelete"),
	wanted("the notification does not end", "wanted.go", "queues.ignore(l)\n\t\tstop()", "queues.ignore(l)\n\t\t_ = stop"),
	wanted("the store is asked for ever", "wanted.go", "l.wanted == nil || l.wanted.is", "l.wanted == nil"),
	wanted("all renewals ask", "wanted.go", "\tif l.wanted == nil || l.wanted.is {\n\t\treturn nil\n\t}\n\treturn l.want",
		"\treturn func() {\n\t\tif l.wanted != nil {\n\t\t\tl.want()\n\t\t}\n\t}"),
	wanted("the answer is about whoever has the lock", "wanted.go", "\treturn l.want\n",
		"\treturn func() {\n\t\tif l := l.grant.lease; l.wanted != nil {\n\t\t\tl.want()\n\t\t}\n\t}\n"),
	wanted("an AllLease that is lost is wanted", "alllease.go",
		"err == nil && a.err == nil && !w.is", "(err != nil || !w.is)"),
	{"an extension does not say that others wait",
		[]patch{{"internal/redis/script/extend.lua", "'+' and 17 or 1", "'+' and 1 or 1"}},
		[]killer{test("internal/redis/script", "TestJoiningMarksTheLock"), test("internal/redis/node",
			"TestRenewalsTellThatOthersWait"),
			test("redlock", "TestRenewalsTellThatOthersWait")}},
	{"those that have left are told of", []patch{{"internal/redis/node/inspect.go", "s.Waiting > 0", "s.Waiting >= 0"}},
		[]killer{test("internal/redis/node", "TestRenewalsTellThatOthersWait")}},
	{"redlock: waiters that have left are reported", []patch{{"redlock/backend.go", "waiting > 0", "waiting >= 0"}},
		[]killer{test("redlock", "TestRenewalsTellThatOthersWait")}},
	{"redlock: a waiter that has the turn does not count",
		[]patch{{"redlock/backend.go", "StartCount(ready, i, key, l.turn.on(i))", "StartInspect(ready, i, key)"}},
		[]killer{test("redlock", "TestRenewalsTellOfTheWaiterThatHasTheTurn")}},
	{"redlock: a lease is wanted because of its own turn",
		[]patch{{"internal/redis/script/inspect.lua", "turn and turn ~= ARGV[1]", "turn"}},
		[]killer{test("internal/redis/script", "TestWaiterThatHasTheTurnCounts"),
			test("redlock", "TestLeaseIsNotWantedBecauseOfItsOwnTurn")}},
	{"all renewals of a marked lock look",
		[]patch{{"internal/redis/node/node.go", " && req.Wanted != nil {", " {"},
			{"internal/redis/node/node.go", "n.isWanted(ctx, &req) {", "n.isWanted(ctx, &req) && req.Wanted != nil {"}},
		[]killer{test("internal/redis/node", "TestRenewalsOfAHolderThatDoesNotAsk")}},
}

func wanted(name, file, from, to string) mutant {
	return mutant{name, []patch{{file, from, to}}, []killer{test(".", "Want|TestAllLeaseIsWanted|IsAboutTheFormerLease")}}
}
