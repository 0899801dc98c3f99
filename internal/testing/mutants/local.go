package main

// What is planted in the hand-over of a lock from one caller of a Client to the next.
var localMutants = []mutant{
	local("a lock is handed over by a lease that has ended", "grant.go",
		"l.err != nil || left(end) <= 0 || g.failed",
		"left(end) <= 0 || g.failed"),
	local("a lock is handed over whose time is over", "grant.go",
		"; l.err != nil || left(end) <= 0 || g.failed",
		"; l.err != nil || end.IsZero() || g.failed"),
	local("a lock in doubt is handed over", "grant.go", " || g.failed != nil ||", " ||"),
	patience("callers behind another one bear what that bears", "keyqueue.go", "w, since, o.patience)",
		"w, since, time.Hour)"),
	patience("patience counts from before the call", "wait.go", "if since.Before(joined) {", "if since.IsZero() {"),
	patience("callers behind another one notice the first outage only", "keyqueue.go",
		"			over, doubts = nil, q.doubts()", "			over = nil"),
	local("nobody asks the store when hand-overs have ended", "keyqueue.go", "		g.check()", "		_ = g"),
	local("a lock that was not handed over is asked for", "grant.go", "!ok || l == &g.first ||", "!ok ||"),
	local("the question at the end of hand-overs changes nothing", "grant.go", "_ = g.ask(ctx, l, &cancel, v.Verify)",
		"_ = v.Verify(ctx, g.req)"),
	closing("a lock is handed over after Close has begun", " || g.client.open.Err() != nil {", " {"),
	closing("a lease is held until Close comes to it", "reason == nil && g.client.closes()", "g == nil"),
	local("another TTL counts when Extend has succeeded", "lease.go", "		l.keep() // the next",
		"		defer l.keep() // the next"),
	local("what is bound to a lock takes effect under the next lease", "lease.go", "if binds {", "if !binds {"),
	local("what is bound to a lock counts when the store has answered", "lease.go", "if binds {\n\t\tl.keep()",
		"if binds {\n\t\tdefer l.keep()"),
	local("a lease that has ended ends the hand-overs", "lease.go", "q != nil && l.Err() == nil", "q != nil"),
	local("tokens are asked for when the wait begins", "wait.go", "if w.queue.waited() {",
		"if w.queue == nil {"),
	local("a lock with NoLocalHandover has a block of tokens", "keyqueue.go",
		"q.alone, q.front = !local,", "_, q.front = !local,"),
	local("a lock with NoLocalHandover is handed over if it has tokens", "keyqueue.go", "if q.alone || g.queue == nil",
		"if g.queue == nil"),
	local("the next lease has the token of the one before", "grant.go", "fence: l.fence + 1", "fence: l.fence"),
	local("the second Unlock of a lease releases the next one", "grant.go", "case g.released || l.passed:",
		"case g.released:"),
	local("the requests of a lease go on after its Unlock", "keyqueue.go", "		(*cancel)()\n	}\n	return handed",
		"		_ = cancel\n	}\n	return handed"),
	local("a loss is that of the lease that heard of it", "grant.go",
		"lost := g.finish(nil, &LostError{Reason: reasonOf(err)})",
		"lost := g.finish(l, &LostError{Reason: reasonOf(err)})"),
	local("callers wait for a grant that has ended", "grant.go", "			g.queue.over(g)", "			_ = g.queue"),
	local("a grant has one lease more than tokens", "keyqueue.go", "q.fences == 0 ||", "q.fences < 0 ||"),
	local("a lock is handed over for as long as callers come", "keyqueue.go", "		q.over(g)\n", ""),
	local("what LockAll undoes is the lock of the next lease", "lease.go", " && !l.grant.belongsToAnother(l)", ""),
	local("the 50 ms go on while the machine is suspended", "keyqueue.go", "return left(q.granted.Add(",
		"return time.Until(q.granted.Add("),
	local("the 50 ms begin after the hooks", "keyqueue.go", "return left(q.granted.Add(", "return left(time.Now().Add("),
	local("a store without tokens has many", "client.go", "req.Fences <= 1 || req.Fence == 0", "req.Fences <= 1"),
	local("callers hear of the holder before", "keyqueue.go", "q.waiting.Len() > 0 || g.queue != nil",
		"q.waiting.Len() > 0"),
	local("a lock is handed over for 50 ms whatever the TTL is", "keyqueue.go", "min(maxLocal, g.req.TTL/localPart)",
		"maxLocal"),
	local("a caller gets a lease with another TTL", "keyqueue.go", "terms{o.ttl, o.label, o.noRenewal}",
		"terms{0, o.label, o.noRenewal}"),
	local("a caller gets a lease with another label", "keyqueue.go", "terms{o.ttl, o.label, o.noRenewal}",
		"terms{o.ttl, \"\", o.noRenewal}"),
	local("a caller gets a lease that is not renewed", "keyqueue.go", "terms{o.ttl, o.label, o.noRenewal}",
		"terms{o.ttl, o.label, false}"),
	local("LockAll gets locks from other callers", "keyqueue.go", " && takenFrom(ctx) == nil", ""),
	local("locks with MaxHold are handed over", "keyqueue.go", "o.maxHold == 0 && ", ""),
	local("locks with MinHold are handed over", "keyqueue.go", "o.minHold == 0 && ", ""),
	local("NoLocalHandover has no effect", "keyqueue.go", "return !o.noLocal && ", "return "),
	local("every Lock asks for a block of tokens", "keyqueue.go",
		"return !q.alone && first != nil && first.Value.(*caller).fits(q.front)",
		"return !q.alone && (first == nil || first.Value != nil)"),
	local("a block is asked for although the next caller needs a grant of its own", "keyqueue.go",
		"return !q.alone && first != nil && first.Value.(*caller).fits(q.front)", "return !q.alone && first != nil"),
	local("a caller that leaves at the hand-over loses the lock", "keyqueue.go",
		"if err != nil && q.quit(w, position) == nil {", "if err != nil {\n\t\tq.quit(w, position)"),
	local("a panic at the hand-over loses the lock", "keyqueue.go", "			_ = l.unlock(ctx)", "			_ = l"),
	local("a lock that was handed over ends the hand-overs of the next grant", "keyqueue.go",
		"if q.local != l.grant || first == nil", "if q.local == nil || first == nil"),
	gate("a gate that was handed over is nobody's", "client.go", "		own(ctx, l, o)\n		return l, nil", "		return l, nil"),
	gate("Close does not wait for a gate that is being handed over", "keyqueue.go", "part: several.CallFrom(ctx) != nil,",
		"part: several.CallFrom(ctx) == nil,"),
	local("Close waits for a lock that could not be handed over", "keyqueue.go",
		"		if w.part {\n			l.grant.client.attempts.done()\n		}\n", ""),
	local("Close waits for what a call has handed over", "lease.go", "		l.discount()\n		return nil\n", "		return nil\n"),
	gate("a panic at the hand-over of a gate is waited for", "keyqueue.go", "			defer l.discount()\n", ""),
	local("the end of a renewal is that of the lease before", "grant.go",
		"g.asking = []*context.CancelFunc{g.renewal}", "g.renewal = nil"),
}

// gate plants a bug in the hand-over of the gate of a semaphore.
func gate(name, file, before, after string) mutant {
	return mutant{"local: " + name, []patch{{file, before, after}}, []killer{test("semaphore", "TestGateThatWas")}}
}

// patience plants a bug in how callers behind the one at the front bear a store that fails.
func patience(name, file, before, after string) mutant {
	return mutant{"local: " + name, []patch{{file, before, after}}, []killer{test(".", "TestEachCallerHasPatience")}}
}

// closing is a bug that shows only if a caller unlocks before another one has learnt that the Client is closed.
func closing(name, before, after string) mutant {
	return mutant{"local: " + name, []patch{{"grant.go", before, after}},
		[]killer{test(".", "TestLockIsNotHandedOverOnceCloseHasBegun").times(50)}}
}

func local(name, file, before, after string) mutant {
	return mutant{"local: " + name, []patch{{file, before, after}},
		[]killer{test(".", "Handed|Handover|Token|Former|Next|HandIt")}}
}
