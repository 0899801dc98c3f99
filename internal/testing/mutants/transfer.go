package main

// What is planted in leases that are passed on.
var transferMutants = []mutant{
	transfer("MinHold is forgotten", "export.go", "max(cmp.Or(x.TTL, l.grant.currentTTL()), req.Keep), 0",
		"cmp.Or(x.TTL, l.grant.currentTTL()), 0"),
	transfer("an export hands the lock over", "lease.go", "q != nil && export == nil && q.handOver(l)",
		"q != nil && q.handOver(l)"),
	transfer("parts of other things are exported", "export.go", "case part || l.grant.req.Group != nil:",
		"case part && l.grant.req.Group != nil:"),
	transfer("a part of something else is resumed", "export.go", "case req.Group != nil || isPart(ctx, req.Key):",
		"case req.Group != nil:"),
	transfer("a lease that was not resumed is returned", "transfer/transfer.go", "case err == nil && !r.Granted():",
		"case err == nil && r.Granted() && false:"),
	transfer("a lock that was released counts as exported", "transfer/transfer.go", "case x.Passed():",
		"case err == nil || x.Passed():"),
	transfer("a middleware's error hides the text", "transfer/transfer.go", "case x.Passed():",
		"case err == nil && x.Passed():"),
	transfer("a text that may be used up counts as unused", "transfer/transfer.go",
		"errors.Is(err, locker.ErrClosed) && r.Sent()", "errors.Is(err, locker.ErrClosed) && r.Granted() && false"),
	transfer("the owner value of a lease makes a text", "transfer/text.go", "!passing.IsOwner(owner)", "owner == \"\""),
	transfer("the lock of a middleware is exported", "internal/core/passing/passing.go",
		"x == nil || x.Of != lease", "x == nil"),
	transfer("a lease that is lost is exported", "lease.go", "export == nil || !errors.Is(l.Err(), ErrLost)", "true"),
	transfer("Unlock forgets an export in doubt", "export.go", "		l.grant.mayBelong(x.To)\n", ""),
	transfer("Unlock undoes an export that may still arrive", "lease.go", "		err = fromBackend(request(rctx, req))\n",
		"		if err = ErrNotHeld; n > 0 || len(owners) == 0 {\n			err = fromBackend(request(rctx, req))\n		}\n"),
	transfer("a Text shows its secret", "transfer/text.go", "[]byte(hidden))", "[]byte(t.Secret()))"),
	transfer("memory: the exporter's value stays", "memory/export.go", "l.token, l.expires = to,",
		"l.expires, _ = time.Now(), to\n		l.expires ="),
	transfer("memory: an export that comes twice begins the TTL anew", "memory/export.go",
		"if l.token != to {", "if true {"),
	transfer("memory: who resumes has no new token", "memory/export.go", "		b.grant(l, req, 1)\n",
		"		l.token, l.label = req.Token, req.Label\n		l.expires = time.Now().Add(req.TTL)\n"),
	transfer("memory: waiters are not told that it ends sooner", "memory/export.go",
		"		l.tellSooner()\n		b.tell(req.Key)", "		b.tell(req.Key)"),
}

func transfer(name, file, before, after string) mutant {
	return mutant{"transfer: " + name, []patch{{file, before, after}}, []killer{test("transfer", ".")}}
}
