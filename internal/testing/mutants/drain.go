package main

// What is planted in Drain of a Client, and in what heeds it.
var drainMutants = []mutant{
	drain("the caller at the front goes on to wait", "client.go", "queue.begin(o.patience, c.open.Done())",
		"queue.begin(o.patience, c.closing)"),
	drain("callers behind another one go on to wait", "client.go", "join(ctx, c.open.Done(),", "join(ctx, c.closing,"),
	drain("an attempt is made after Drain has begun", "lifecycle.go", "	err := c.refusal()\n	if err == nil {",
		"	var err error\n	if !c.closed {"),
	drain("a lock that is granted after Drain has begun is held", "client.go",
		"	if err := c.refusal(); err != nil {\n		return nil, err\n	}\n	if c.schedule", "	if c.schedule"),
	drain("a lock is handed over after Drain has begun", "grant.go", "g.client.open.Err() != nil {",
		"g.client.closes() {"),
	drain("a wait says that the Client is closed", "lifecycle.go", "	if why := c.refusal(); why != nil {",
		"	if why := c.refusal(); why != nil && c.closed {"),
	drain("ErrDraining is no ErrClosed", "errors.go", "return target == ErrClosed }\n\nvar errReentrant",
		"return target == nil }\n\nvar errReentrant"),
	drain("Drain does not wait for leases", "lifecycle.go", "{&c.grants, &c.attempts}", "{&c.attempts}"),
	drain("Drain does not wait for what is in flight", "lifecycle.go", "{&c.grants, &c.attempts}", "{&c.grants}"),
	drain("a release counts when its lease has ended", "lease.go", "	attempts.add() // before the lease ends: Drain and "+
		"Close wait for the release\n	defer attempts.done()\n",
		"	defer func() { attempts.add(); attempts.done() }()\n"),
	drain("Drain ignores its context", "lifecycle.go", "		case <-t.none():\n		case <-ctx.Done():\n",
		"		case <-t.none():\n"),
	drain("Drain ends the leases", "lifecycle.go", "		if l.Err() == nil {\n			held",
		"		if g.finish(l, &LostError{Reason: LostClosed}) == nil {\n			held"),
	{"drain: a leader goes on", []patch{{"election/election.go", "			cancel(locker.ErrDraining)\n", ""}},
		[]killer{test("election", "Drain")}},
	{"drain: Run of a candidate fails", []patch{{"election/election.go",
		"		case errors.Is(err, locker.ErrDraining): // the campaign may learn of it first\n			return nil\n", ""}},
		[]killer{test("election", "Drain")}},
	{"drain: readers share a slot", []patch{{"rwlock/readers.go", "	case <-rw.drains:\n		return nil\n",
		"	case <-rw.drains:\n"}}, []killer{test("rwlock", "Drain")}},
	{"drain: a retry pauses on", []patch{{"middleware/retry/retry.go", "retrier{next, locker.Draining(next), &p}",
		"retrier{next, nil, &p}"}}, []killer{test("middleware/retry", "TestOnlyFaultsAreRetried")}},
	{"drain: a job fails", []patch{{"internal/postpone/postpone.go", ", errors.Is(err, locker.ErrDraining):", ":"}},
		[]killer{test("internal/postpone", "Drain")}},
}

func drain(name, file, before, after string) mutant {
	return mutant{"drain: " + name, []patch{{file, before, after}}, []killer{test(".", "Drain")}}
}
