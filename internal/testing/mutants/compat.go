package main

import "path"

// What is planted in the packages that have the API of other libraries.
var compatMutants = []mutant{
	inRetries("a program that has not moved is asked for as rarely as others", `held.Label != ""`, `held != nil`,
		"TestHolderThatHasNotMovedIsAskedForAtEachPause"),
	inRetries("a program that has moved is asked for at each pause", `held.Label != ""`, `held == nil`,
		"TestHolderThatHasMovedIsAskedForOnceASecondAndAtTheEnd"),
	inRetries("nobody asks for the lock at the end", "			if old {", "			if false {",
		"TestHolderThatHasMovedIsAskedForOnceASecondAndAtTheEnd"),
	inRetries("what the queue grants at the end is lost", "late.err == nil", "late.err == nil && late.lease == nil",
		"TestLockThatIsGrantedAtTheEndIsNotLost"),
	planted("redsync/redsync.go", "one server has another key", `single.Prefix("")`, `single.Prefix("lock:")`,
		"TestInspection"),
	planted("redsync/redsync.go", "several servers have another key", `redlock.Prefix("")`, `redlock.Prefix("lock:")`,
		"TestMajorityDecides"),
	planted("redsync/mutex.go", "locks share a value", ", locker.NoLocalHandover()}", "}", "TestValuesDiffer"),
	planted("redsync/mutex.go", "a part of a value unlocks", "	if m.whole() {\n", "	if true {\n",
		"TestValueUnlocksElsewhere"),
	planted("redsync/mutex.go", "a successor looks like an expiry", "notHeld.Reason != locker.LostGone", "false",
		"TestUnlockSparesTheSuccessor"),
	planted("redsync/mutex.go", "the drift factor has no effect", "max(0, m.driftFactor-leaseDrift)", "0.0",
		"TestOptions"),
	planted("redsync/mutex.go", "SetNX always acquires again", "	case m.relocks:", "	case true:",
		"TestLockIsNotRenewedByItself"),
	planted("redislock/redislock.go", "the TTL is that of another owner", "l.Token(), seen.Owner", `l.Token(), ""`,
		"TestTTLIsThatOfTheServer"),
	planted("redislock/clients.go", "each call has a Client", "		return l\n	}\n	l :=",
		"		_ = l\n	}\n	l :=", "TestClientsAreShared"),
}

func inRetries(name, old, changed, tests string) mutant {
	return planted("internal/retries/retries.go", name, old, changed, tests)
}

func planted(file, name, old, changed, tests string) mutant {
	file = "compat/" + file
	return mutant{file + ": " + name, []patch{{file, old, changed}}, []killer{test(path.Dir(file), tests)}}
}
