package main

// verifyMutants are bugs by which locker.Verify would prove what is not so. The simulation does not find them while
// timing is sound, because the clock has ended such leases before.
var verifyMutants = []mutant{
	{"verify does not look at the counter",
		[]patch{{"internal/redis/script/verify.lua", "c > string.sub(ARGV[1], 1, 16) and 3 or 1", "1"}},
		[]killer{test("internal/redis/script", "TestVerifyScript"), modelled("-DCERT_ANY", "-DCERT=1")}},
	{"a replica verifies", []patch{{"internal/redis/script/verify.lua", "redis.call('HDEL', KEYS[2], '')", ""}},
		[]killer{test("internal/redis/script", "TestVerifyAsksAMaster")}},
	{"verify says yes whoever has the lock",
		[]patch{{"internal/redis/script/verify.lua", "and 4 or 0", "and 1 or 0"}},
		[]killer{test("internal/redis/script", "TestVerifyScript")}},
	{"verify counts nodes that granted late or healed",
		[]patch{{"redlock/update.go", "return errAhead", "return nil"}},
		[]killer{
			test("redlock", "TestLateGrantAheadOfTheTokenIsNoProof|TestNodesThatHealedProveNothing"),
			modelled("-DCERT_AHEAD", "-DCERT=1", "-DAHEAD=1"),
		}},
	{"verify counts the answers to the acquisition",
		[]patch{{"redlock/update.go", "	u.begin(ctx)\n	err :=",
			"	u.begin(ctx)\n	if u.op == opVerify {\n		u.tally.yes |= u.tally.asked\n	}\n	err :="}},
		[]killer{test("redlock", "TestVerifyCountsFreshAnswersOnly"), modelled("-DSTALE_ACK", "-DCERT=1")}},
	{"a lease that verify has found lost heals",
		[]patch{{"redlock/update.go", "u.l.over = u.l.over || u.tally.outcome() == lost", "_ = u.l.over"}},
		[]killer{test("redlock", "TestVerifyThatFindsALossEndsHealing")}},
	{"a lease that has ended is verified",
		[]patch{{"lease.go", "v.Verify); err != nil {\n			return err\n		}\n		return l.Err()",
			"v.Verify); err != nil {\n			return err\n		}\n		return nil"}},
		[]killer{test(".", "TestVerifyThatIsAnsweredTooLate")}},
	{"something is bound to a lease that has ended",
		[]patch{{"lease.go", "		case err != nil:\n			return err\n		}\n		return l.Err()",
			"		case err != nil:\n			return err\n		}\n		return nil"}},
		[]killer{test(".", "TestBind$")}},
}
