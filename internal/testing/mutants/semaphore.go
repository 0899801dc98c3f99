package main

// What is planted in semaphores, and in what they are made of.
var semaphoreMutants = []mutant{
	permit("a permit is a lock of another key", "internal/slots/slots.go", `return "{" + key + "}#" + what`,
		`return "{" + key + "}#" + string(what[0])`),
	permit("a free permit is taken although others wait", "internal/slots/slots.go",
		"TryLockMany(ctx, g.Locker, locker.Many{Keys: keys, N: n, Gates: gates}",
		"TryLockMany(ctx, g.Locker, locker.Many{Keys: keys, N: n}"),
	permit("permits are looked for without the gate", "internal/slots/search.go", "range s.group.Gates {",
		"range s.group.Gates[:0] {"),
	permit("who has lost the gate goes on", "internal/slots/search.go",
		"		s.gates = append(s.gates, l)\n		s.watch(l, gate)\n", "		s.gates = append(s.gates, l)\n"),
	permit("the gate is not opened", "internal/slots/search.go", "releases.Go(func() { _ = l.Unlock(ctx) })",
		"releases.Go(func() { _ = l })"),
	permit("what was not needed is kept", "internal/slots/search.go",
		"releases.Go(func() { _ = a.lease.Unlock(undo) })", "_ = a.lease"),
	permit("what a call that fails has acquired is kept", "internal/slots/search.go",
		"releases.Go(func() { _ = l.Unlock(undo) })", "_ = l"),
	permit("MinHold applies to what a call gives back", "internal/slots/search.go", "undo := several.Undo(ctx)",
		"undo := context.WithoutCancel(ctx)"),
	permit("a gate is not renewed", "internal/slots/slots.go", "locker.Renewal(), ", ""),
	permit("MinHold applies to the gate", "internal/slots/slots.go", "locker.MaxHold(0), locker.MinHold(0)",
		"locker.MaxHold(0)"),
	permit("MaxHold applies to the gate", "internal/slots/slots.go", "locker.MaxHold(0), locker.MinHold(0)",
		"locker.MinHold(0)"),
	permit("a holder waits for its own permit", "do.go", "ctx.Value(ownKey{c, key}) != nil", "ctx == nil"),
	permit("numbers of permits are in no order", "internal/slots/search.go", "	s.held.sort()\n", ""),
	permit("the gate is released after Unlock", "semaphore/semaphore.go", "	<-p.held.Settled\n", ""),
	permit("a permit that is lost meanwhile is returned", "internal/slots/search.go",
		"case s.lost() != nil || lost != nil && ending.Of(ctx) == nil:", "case lost != nil && s == nil:"),
	permit("the panic of a hook takes the program", "internal/slots/search.go", "a.panicked = recover()", "_ = s"),
	permit("errors are about one of the permits", "internal/slots/slots.go", "if g.Explain == nil ||",
		"if g.Explain != nil ||"),
	permit("a waiter is taken for a holder", "internal/slots/slots.go", "g.Explain(gate, held)",
		"g.Explain(!gate, held)"),
	permit("a refused call gives up the other requests", "internal/slots/search.go", "s.ask(s.caller, batch",
		"s.ask(s.ctx, batch"),
	permit("the end of the context after an answer is not told", "internal/slots/slots.go",
		"if end == nil ||", "if err != nil ||"),
	permitModelled("a program uses a permit beyond its n", "semaphore/semaphore.go", "slots.Names(key, s.n)",
		"slots.Names(key, s.n+1)", "-DBEYOND"),
	permitModelled("the gate has the name of a permit", "semaphore/semaphore.go", `slots.Name(key, "gate")`,
		`slots.Name(key, "0")`, "-DGATE_COUNTS"),
	permit("holders do not learn that others wait", "semaphore/semaphore.go",
		"Unwrap() locker.Lease { return p.Lease }", "Unwrap() locker.Lease { return nil }"),
	permit("two weights meet", "internal/slots/search.go", "for len(s.held.Slots) < s.n &&",
		"for len(s.held.Slots) < 1 &&"),
}

func permit(name, file, old, changed string) mutant {
	return mutant{"semaphore: " + name, []patch{{file, old, changed}}, []killer{test("semaphore", "Test")}}
}

// permitModelled is a permit that the model of places has, too.
func permitModelled(name, file, old, changed, flag string) mutant {
	m := permit(name, file, old, changed)
	m.killers = append(m.killers, modelled("places", "-DP=2", "-DKINDS=3", "-DSMALL=1", "-DLEAVES=0", flag))
	return m
}
