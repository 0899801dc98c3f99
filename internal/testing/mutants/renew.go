package main

// What is planted in the schedule of the renewals.
var renewMutants = []mutant{
	renewal("renewals that hang keep their places", "return begin, s.makeRoom(now)",
		"return begin, nil",
		"TestLeasesBesideAServerThatHangs/15000"),
	renewal("all renewals that are late are given up", "if s.places.slow < maxSlow {", "if s.places.slow < 0 {",
		"TestStoreThatIsSlowIsAwaited"),
	renewal("what answers took of late does not count", "max(2*s.slowest,", "max(0,", "TestStoreThatIsSlowIsAwaited"),
	renewal("patience does not depend on the number of leases",
		"s.shortest/renewPart/time.Duration(max(1, len(s.grants)))",
		"s.shortest/renewPart", "TestLeasesBesideAServerThatHangs/15000"),
}

func renewal(name, before, after, killers string) mutant {
	return mutant{"renew: " + name, []patch{{"schedule.go", before, after}}, []killer{test(".", killers)}}
}
