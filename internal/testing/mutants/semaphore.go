package main

// What is planted in semaphores, and in what they are made of.
var semaphoreMutants = []mutant{
	permit("a permit is a lock of another key", "internal/slots/slots.go", `return "{" + key + "}#" + what`,
		`return "{" + key + "}#" + string(what[0])`),
	permit("the locks of some keys have several hash slots", "internal/slots/slots.go",
		`strings.HasPrefix(key, "}")`, `key == "}"`),
	permit("names of locks are those of another key", "internal/slots/slots.go", `key + "##:" + what`,
		`key + "##" + what`),
	permit("a free permit is taken although others wait", "internal/slots/slots.go",
		"TryLockMany(ctx, g.Locker, locker.Many{Keys: keys, N: n, Gates: gates}",
		"TryLockMany(ctx, g.Locker, locker.Many{Keys: keys, N: n}"),
	permit("permits are looked for without the gate", "internal/slots/search.go", "range s.group.Gates {",
		"range s.group.Gates[:0] {"),
	permit("who has lost the gate goes on", "internal/slots/search.go",
		"		s.gates = append(s.gates, l)\n		s.watch(l, gate)\n", "		s.gates = append(s.gates, l)\n"),
	permit("the gate is not opened", "internal/slots/search.go", "		release(ctx, l)\n", "		_ = l\n"),
	permit("what was not needed is kept", "internal/slots/search.go",
		"release(undo, a.lease)", "_ = a.lease"),
	permit("what a call that fails has acquired is kept", "internal/slots/search.go",
		"		release(undo, l)\n", "		_ = l\n"),
	permit("MinHold applies to what a call gives back", "internal/slots/search.go", "undo := several.Undo(ctx)",
		"undo := context.WithoutCancel(ctx)"),
	permit("a gate is not renewed", "internal/slots/slots.go", "locker.Renewal(), ", ""),
	permit("MinHold applies to the gate", "internal/slots/slots.go", "locker.MaxHold(0), locker.MinHold(0)",
		"locker.MaxHold(0)"),
	permit("MaxHold applies to the gate", "internal/slots/slots.go", "locker.MaxHold(0), locker.MinHold(0)",
		"locker.MinHold(0)"),
	permit("a holder waits for its own permit", "do.go", "own > gate.Spare", "own > len(gate.Places)"),
	permit("permits of other keys are taken for the caller's own", "do.go",
		"strings.CutSuffix(key, gate.Name)", `strings.CutSuffix("a:"+gate.Name, gate.Name)`),
	permit("a holder that can be served is refused", "internal/slots/search.go", "Spare: len(s.group.Slots) - s.n}",
		"Spare: 0}"),
	permit("numbers of permits are in no order", "internal/slots/search.go", "	s.held.sort()\n", ""),
	permit("the gate is released after Unlock", "semaphore/semaphore.go", "	defer p.held.Wait()\n", ""),
	permit("Unlock waits for the gate first", "semaphore/semaphore.go", "	defer p.held.Wait()\n", "	p.held.Wait()\n"),
	permit("TryLock gives back what it does not need after its context has ended", "internal/slots/search.go",
		"throw(s.settle(ctx, nil))", "throw(s.settle(context.WithoutCancel(ctx), nil))"),
	permit("Close does not wait for the release of the gate", "internal/slots/search.go",
		"	call.Keep()\n	go func() {\n		defer close(over)\n		defer call.End()\n",
		"	_ = call\n	go func() {\n		defer close(over)\n"),
	permit("the panic of a release in the background is lost", "internal/slots/search.go", "			panicked <- p\n",
		"			_ = p\n"),
	permit("the panic of a release is lost", "internal/slots/search.go",
		"			throw(s.settle(several.Undo(ctx), s.held.Leases))", "			_ = s.settle(several.Undo(ctx), s.held.Leases)"),
	permit("a middleware that panics keeps a lock", "internal/slots/search.go",
		"of.Unwrap(); behind != nil {", "of.Unwrap(); behind == nil {"),
	permit("a call that panics at its end keeps its permit", "internal/slots/search.go",
		"		if held == nil {\n			throw(", "		if held == nil && len(s.held.Leases) < n {\n			throw("),
	permit("a permit that is lost meanwhile is returned", "internal/slots/search.go",
		"	if err := s.lost(); err != nil {\n		return nil, err\n	}\n	if lost != nil && ending.Of(ctx) == nil {",
		"	if lost != nil && s == nil {"),
	permit("the panic of a hook takes the program", "internal/slots/search.go", "a.panicked = recover()", "_ = s"),
	permit("a hook that ends its goroutine takes the program", "internal/slots/search.go", "slot: i, err: errGoexit}",
		"slot: i}"),
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
