package main

// cleanupMutants are bugs of what repeats releases and undoes attempts in the background, for all stores.
var cleanupMutants = []mutant{
	inCleanup("chores whose time is over are called", "		if !t.over() {\n", "		if t.chore != nil {\n",
		"TestChoreEndsWithItsTime|TestOutageLeavesNothingForLong"),
	inCleanup("a call outlasts the time of its chore", "t.until.Before(end)", "t.until.IsZero()",
		"TestChoreEndsWithItsTime"),
	inCleanup("chores whose time is over take room",
		"		q.fresh, q.failed = slices.DeleteFunc(q.fresh, todo.over), slices.DeleteFunc(q.failed, todo.over)\n", "",
		"TestBacklogIsBounded"),
	inCleanup("every worker asks a store that is down",
		"		if failed && q.workers > 2 {\n", "		if t.last {\n", "TestOneChoreProbesAStoreThatIsDown"),
	inCleanup("one worker goes on after an outage", "	q.probing = failed\n",
		"	q.probing = q.probing || failed\n", "TestOutageLeavesNothingForLong"),
	inCleanup("the probe is always the same chore", "		q.failed = append(q.failed, t)\n",
		"		q.fresh = append(q.fresh, t)\n", "TestOneChoreProbesAStoreThatIsDown"),
	inCleanup("a new chore waits for those that fail", "room, waiting = 2, len(q.fresh)", "room = 1",
		"TestChoresThatFailDoNotHoldUpNewOnes"),
	inCleanup("the success of a new chore ends the probing", "	if q.probing && !probes { //",
		"	if q.probing && !probes && failed { //", "TestChoresThatFailDoNotHoldUpNewOnes"),
	inCleanup("the oldest chore comes first", "newest := len(q.fresh) - 1; newest >= 0",
		"newest := min(0, len(q.fresh)-1); newest >= 0", "TestNewestChoreComesFirst|TestChoresThatFailDoNotHoldUpNewOnes"),
	inCleanup("a call in progress counts as the last one", "	if failed && !t.last {\n",
		"	select {\n	case <-q.closing:\n		t.last = true\n	default:\n	}\n	if failed && !t.last {\n",
		"TestCallInProgressIsNotTheLastOne"),
	inCleanup("Close calls chores again and again",
		"				t.last = true\n", "				t.last = false\n", "TestCloseCallsEachChoreOnceMore"),
	inCleanup("Close waits for a pause", "		case <-q.closing:\n		}\n", "		}\n",
		"TestCloseCallsEachChoreOnceMore"),
	inCleanup("Close does not end what hangs", "defer time.AfterFunc(grace, q.stop).Stop()",
		"defer time.AfterFunc(grace, func() {}).Stop()", "TestCloseIsBounded"),
}

func inCleanup(name, before, after, tests string) mutant {
	return mutant{"clean-up: " + name, []patch{{"backend/cleanup/cleanup.go", before, after}},
		[]killer{test("backend/cleanup", tests)}}
}
