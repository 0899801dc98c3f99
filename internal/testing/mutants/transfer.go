package main

import "path"

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
	onScripts("the exporter's value stays", "export", "ARGV[3] .. ARGV[2] .. string", "ARGV[3] .. ARGV[1] .. string"),
	onScripts("an export that comes twice begins the TTL anew", "export",
		"math.max(1, redis.call('PTTL', KEYS[1])))", "ttl)"),
	onScripts("an export that comes twice is no write", "export",
		"  redis.call('PEXPIRE', KEYS[1], math.max(1, redis.call('PTTL', KEYS[1])))\n", ""),
	onScripts("late requests of the exporter are executed", "export", "if KEYS[2] then", "if false then"),
	onScripts("a lock that was granted once more is exported", "export", "if c > ARGV[3] then return 3 end\n", ""),
	onScripts("an export forgets who waits", "export", "%d+|(.*)$", "%d+|([^+]*)"),
	onScripts("who resumes forgets who waits", "resume", "(string.sub(cur, -1) == '+' and '+' or '')", "''"),
	onScripts("who resumes has no new token", "resume", "c = mint(1, tonumber(last))", "c = last"),
	onScripts("who resumes has a smaller token", "resume", "mint(1, tonumber(last))", "mint(1, 0)"),
	onScripts("a resumption that comes twice begins the TTL anew", "resume",
		"math.max(1, redis.call('PTTL', KEYS[1])))", "ttl)"),
	onScripts("a text works twice", "resume", "c .. ARGV[1] .. (", "c .. ARGV[2] .. ("),
	onScripts("a free lock is resumed", "resume", "if not c and not last then", "if cur and not c and not last then"),
	onScripts("a server that rests lets a lock be resumed", "resume", "-- if guarded: if rests then return rests end\n",
		""),
	onNode("an undo leaves the text", "		if err := n.clean(ctx, first); err != nil {\n			return err\n		}\n",
		"		_ = first\n"),
	onNode("an undo begins with the attempt", "first, then := n.undoing", "then, first := n.undoing"),
	onNode("an undo leaves the lock of the attempt", "return n.clean(ctx, then)", "_ = then\n		return nil"),
	onNode("an undo goes on before the text is gone",
		"		if err := n.clean(ctx, first); err != nil {\n			return err\n		}\n", "		_ = n.clean(ctx, first)\n"),
	onNode("a refusal uses the text up", "if isDoubtful(err) {", "if err != nil {"),
	onNode("what is granted to a node that closes is left", "if err == nil && n.closed() {", "if false {"),
	onNode("a lock that was granted once more is left", "lost.Reason == locker.LostSuperseded",
		"lost.Reason == locker.LostTakenOver"),
	onNode("a late request is forgotten", "n.releaseOf(&req, landed(&req)", "n.releaseOf(&req, true"),
	passed("a step that fails leaves its file", "cli/lease.go", "if err != nil && p.used {", "if err == nil && p.used {"),
	passed("a step that fails passes the lock on", "internal/supervise/holder.go", "if err == nil && o.Pass != nil {",
		"if o.Pass != nil {"),
	passed("a lease is written over what is there", "cli/lease.go", "return os.Link(f.Name(), p.file)",
		"return os.Rename(f.Name(), p.file)"),
	passed("everybody can read a lease", "cli/lease.go",
		"f, err := os.CreateTemp(filepath.Dir(p.file), \".\"+filepath.Base(p.file)+\".*\")",
		"f, err := os.OpenFile(p.file+\".new\", os.O_CREATE|os.O_WRONLY, 0o644)\n	_ = filepath.Dir"),
	passed("a lock whose file cannot be written stays taken", "cli/lease.go", "err != nil || lease.Unlock(ctx) != nil",
		"err != nil || lease == nil"),
	passed("a lease is written to a terminal", "cli/lease.go", "!info.Mode().IsRegular()", "info.Mode() == 0"),
	passed("a store that cannot pass on is asked", "cli/lease.go", "p.l, err = l, able(l)", "p.l = l"),
}

func onScripts(name, file, before, after string) mutant {
	return mutant{"Redis: " + name, []patch{{"internal/redis/script/" + file + ".lua", before, after}}, []killer{
		test("internal/redis/script", "Export|Resume|Passed|Undone|TestWhatProlongsALock")}}
}

func onNode(name, before, after string) mutant {
	return mutant{"Redis: " + name, []patch{{"internal/redis/node/export.go", before, after}}, []killer{
		test("internal/redis/node", "Export|Resume")}}
}

// passed plants a bug in the commands that pass a lock on.
func passed(name, file, before, after string) mutant {
	file = path.Join("cmd/locker", file)
	return mutant{"locker: " + name, []patch{{file, before, after}},
		[]killer{testIn("cmd/locker/cli", "Lease|Pipeline|Step|AcquireNeeds")}}
}

func transfer(name, file, before, after string) mutant {
	return mutant{"transfer: " + name, []patch{{file, before, after}}, []killer{test("transfer", ".")}}
}
