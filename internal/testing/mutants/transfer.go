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
	transfer("a lease that was not resumed is returned", "transfer/transfer.go", "case err == nil && !r.Heard():",
		"case err == nil && r.Heard() && false:"),
	transfer("a lock that was released counts as exported", "transfer/transfer.go", "err == nil && !x.Passed()",
		"err == nil && x.To == \"\""),
	transfer("a Text shows its secret", "transfer/text.go", "[]byte(hidden))", "[]byte(t.Secret()))"),
	transfer("memory: the exporter's value stays", "memory/export.go", "l.token, l.expires = to,",
		"l.expires, _ = time.Now(), to\n	l.expires ="),
	transfer("memory: who resumes has no new token", "memory/export.go", "		b.grant(l, req, 1)\n",
		"		l.token, l.label = req.Token, req.Label\n		l.expires = time.Now().Add(req.TTL)\n"),
	transfer("memory: waiters are not told that it ends sooner", "memory/export.go",
		"	l.tellSooner()\n	b.tell(req.Key)", "	b.tell(req.Key)"),
}

func transfer(name, file, before, after string) mutant {
	return mutant{"transfer: " + name, []patch{{file, before, after}}, []killer{test("transfer", ".")}}
}
