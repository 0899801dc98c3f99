package main

// joinedMutants are bugs of requests to PostgreSQL that are joined.
var joinedMutants = []mutant{
	joined("outcomes are swapped", "join.go", "c.owner = owners[i]", "c.owner = owners[len(all)-1-i]",
		"TestChangesAtTheSameTimeAreJoined|TestOneServer/JoinedOutcomes"),
	joined("one outcome for all", "join.go", "c.owner = owners[i]", "c.owner = owners[i*0]",
		"TestChangesAtTheSameTimeAreJoined|TestOneServer/JoinedOutcomes"),
	joined("a change is a statement", "join.go", "is := n < maxStep &&", "is := n < 1 &&",
		"TestChangesAtTheSameTimeAreJoined|TestOneServer/ExclusiveLockIsCheap"),
	joined("there is one sender", "join.go", "if j.senders < maxSenders {", "if j.senders < 1 {",
		"TestChangesAtTheSameTimeAreJoined"),
	joined("what is passed over counts as done", "join.go", "case c.owner == nil:\n				return j.alone(c.ctx, c)",
		"case c.owner == nil:\n				return \"held\", nil",
		"TestChangeThatIsPassedOver|TestOneServer/JoinedReleaseBesideTransaction"),
	joined("one that is refused refuses all", "join.go", "if len(all) > 1 && err != nil",
		"if len(all) > 999 && err != nil", "TestStatementThatFails|TestOneServer/NoRightToReleaseTogether"),
	joined("what may have been done is sent alone", "join.go", "&& !unknown(err) {", "{", "TestStatementThatFails"),
	joined("who leaves takes others along", "join.go", "slices.Delete(j.waiting, i, i+1)", "j.waiting[:i]",
		"TestCallerThatLeaves"),
	joined("who leaves waits for the answer", "join.go",
		"			return \"\", c.ctx.Err()", "			<-c.answered\n			return \"\", c.ctx.Err()", "TestCallerThatLeaves"),
	joined("a change waits for senders that hang", "join.go", "			j.hurry(c)", "			_ = c", "TestSendersThatHang"),
	joined("a change waits for senders without connections", "join.go", "(j.connecting == 0 || stuck)",
		"(j.connecting == 0 || stuck && j.most == 0)", "TestSendersWithoutConnections|TestNoConnectionIsToBeHad"),
	joined("a change fails with the wait of an earlier one", "join.go", "return !c.since.After(began) &&",
		"return (c != nil || began.IsZero()) &&", "TestChangesWaitForAConnection"),
	joined("short locks and long ones share a statement", "join.go", "own <= 2*limit && limit <= 2*own", "own > 0",
		"TestShortLocksCostNoOthers"),
	joined("a short lock ends the wait of a long one", "join.go", "limitOf(j.timeout, c) <= 2*limit", "limit > 0",
		"TestShortLocksCostNoOthers"),
	joined("a release whose caller has left is dropped", "backend.go",
		"		b.chores.Repeat(time.Now().Add(req.TTL), func(ctx context.Context) error {\n			_, err := release(ctx)",
		"		b.chores.Repeat(time.Now().Add(req.TTL), func(context.Context) error {\n			_, err := release(ctx)",
		"TestOneServer/ReleasesOfCallersThatLeave"),
	joined("waiters are not notified", "migrations/0003_functions.sql",
		"was[i] := @schema@.release(a_names[i], a_tokens[i], 0);",
		"was[i] := 'held'; DELETE FROM @schema@.locks k WHERE k.name = a_names[i] AND k.token = a_tokens[i];",
		"TestOneServer/SomeLocksAtOnce"),
	joined("a release waits for another lock's transaction", "migrations/0003_functions.sql",
		"		IF pg_try_advisory_xact_lock(@schema@.slot(a_names[i])) THEN\n			was[i] := @schema@.release(",
		"		IF true THEN\n			was[i] := @schema@.release(", "TestOneServer/SomeLocksAtOnce"),
	joined("an extension waits for another lock's transaction", "migrations/0003_functions.sql",
		"		IF pg_try_advisory_xact_lock(@schema@.slot(a_names[i])) THEN\n			was[i] := @schema@.extend(",
		"		IF true THEN\n			was[i] := @schema@.extend(", "TestOneServer/SomeLocksAtOnce"),
}

func joined(name, file, before, after, names string) mutant {
	const module = "backends/postgreslock"
	return mutant{"joined: " + name, []patch{{module + "/" + file, before, after}},
		[]killer{testIn(module, names)}}
}
