package main

// subscriptionMutants are bugs of the subscription over which waiters are told of releases.
var subscriptionMutants = []mutant{
	{"no look when the subscription is there",
		[]patch{{"internal/node/probe.go", "if in.confirmed[l.channel] {\n				l.news(false)",
			"if in.confirmed[l.channel] && receivers < 0 {\n				l.news(false)"}},
		[]killer{test("internal/node",
			"TestWaiterLooksWhenItsSubscriptionIsThereAgain|TestHintIsPublishedWhileTheSubscriptionIsAway")}},
	{"the answer to a probe of the subscription is ignored",
		[]patch{{"internal/node/probe.go", "in.counted = receivers > 0", "in.counted = receivers >= 0"}},
		[]killer{test("internal/node", "TestSubscriptionThatTheMaster"),
			test("single", "TestWaitersFollowThePlannedFailover/FAILOVER/redigo")}},
	{"a probe that was not sent is not repeated",
		[]patch{{"internal/node/probe.go", "p.asked = !isNotSent(c.Err)\n", "\n"}},
		[]killer{test("internal/node", "TestProbeThatWasNotSentIsRepeated")}},
	{"a probe that has failed is not repeated soon",
		[]patch{{"internal/node/probe.go", "p.tick.Reset(p.pause/2 + rand.N(p.pause/2))", "_ = rand.N(p.pause)"}},
		[]killer{test("internal/node", "TestProbeThatFailedIsRepeated")}},
	{"a probe that is refused is not repeated soon",
		[]patch{{"internal/node/probe.go", "!isInt && !refusedForGood(refusal)", "!isInt && refusedForGood(refusal)"}},
		[]killer{test("internal/node", "TestProbeThatFailedIsRepeated")}},
	{"probes that fail are repeated without growing pauses",
		[]patch{{"internal/node/probe.go", "max(2*p.pause, inboxMinPause)", "inboxMinPause"}},
		[]killer{test("internal/node", "TestProbesThatAlwaysFail")}},
	{"each new listener doubles the pause before the next probe",
		[]patch{{"internal/node/probe.go", "p.due || p.pause == 0:", "p.due || p.pause >= 0:"}},
		[]killer{test("internal/node", "TestNewListenersDoNotDelayTheProbe")}},
}
