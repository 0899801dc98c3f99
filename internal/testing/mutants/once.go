package main

// What is planted in package once.
var onceMutants = []mutant{
	tick("the claim ends with the usual TTL", "locker.TTL(c.hold()), ", "", "TestTheClaimOutlastsTheSkew"),
	tick("the claim ends with the job", ", locker.MinHold(c.hold())}", "}", "TestTheClaimOutlastsTheSkew"),
	tick("the skew does not count", "c.window + c.skew - c.age", "c.window - c.age", "TestTheClaimOutlastsTheSkew"),
	tick("the claim counts from the call", "c.window + c.skew - c.age", "c.window + c.skew", "TestTickInTheFuture"),
	tick("nobody looks at the clock before the request", "		err = c.late()\n", "		err = nil\n",
		"TestTooLateAsksNobody"),
	tick("nobody looks at the clock when the lock is granted", "	if late := c.late(); late != nil {",
		"	if late := error(nil); late != nil {", "TestProcessStandsStillBeforeItsRequest"),
	tick("only the wall clock counts", "max(c.wall(), c.age+time.Since(c.looked))", "c.wall()",
		"TestProcessStandsStillBeforeItsRequest"),
	tick("only the monotonic clock counts", "max(c.wall(), c.age+time.Since(c.looked))", "c.age + time.Since(c.looked)",
		"TestProcessStandsStillBeforeItsRequest"),
	tick("a call that finds the tick held does not wait", "settling = time.Second", "settling = time.Nanosecond",
		"TestAnswerIsLost"),
	named("all ticks have one lock", "2006-01-02T15:04:05.999Z", "2006", "TestWhichTick"),
	named("each time zone has its ticks", "at.UTC().Format", "at.Format", "TestWhichTick"),
	named("ticks of one second are one", "05.999Z", "05Z", "TestWhichTick"),
	tick("the time of a clock is a tick", "%int(time.Millisecond) != 0", "%int(time.Millisecond) < 0", "TestInvalid"),
	tick("a release that is not answered is an error", "	if errors.Is(err, locker.ErrUnavailable) {", "	if false {",
		"TestTheClaimOutlastsTheSkew"),
	tick("a tick that is hours ahead is run", "-c.age > max(c.skew, time.Second)", "-c.age > 100*time.Hour",
		"TestTickInTheFuture"),
	tick("a call does not ask again while the store is down",
		"			if pause(ctx) {\n				continue\n			}\n			err = context.Cause(ctx)\n", "			pause(ctx)\n", "TestStoreIsDown"),
	tick("an error names the lock of the tick", "		return nil, named(key, err)\n", "		return nil, err\n",
		"TestErrorsNameTheKeyOfTheCaller"),
	tick("the end of the context looks like a tick that is claimed", "wait.Err() != nil && ctx.Err() == nil",
		"wait.Err() != nil", "TestContextEnds"),
}

// named is a mutant of the names of ticks.
func named(name, old, changed, tests string) mutant {
	return mutant{"once: " + name, []patch{{"internal/core/tick/tick.go", old, changed}}, []killer{test("once", tests)}}
}

func tick(name, old, changed, tests string) mutant {
	return mutant{"once: " + name, []patch{{"once/once.go", old, changed}}, []killer{test("once", tests)}}
}
