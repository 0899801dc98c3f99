package main

// What is planted where leases end.
var expiryMutants = []mutant{
	{"expiry: many leases begin to end as late as one",
		[]patch{{"client.go", "c.grants.n.Load()/1000", "c.grants.n.Load()*0"}},
		[]killer{test(".", "TestManyLeasesThatEndTogetherEndEarlier")}},
	{"expiry: renewals are tried again until many leases end",
		[]patch{{"renew.go", "g.failed != nil && left(end) <= 2*", "g.failed != nil && left(end) <= 0*"}},
		[]killer{test(".", "TestManyLeasesAreNotRenewedAgainWhenTheyAreAboutToEnd")}},
	{"expiry: Close tells of a lease when the hooks of another have ended",
		[]patch{{"lifecycle.go", "g.conclude(nil, &LostError{Reason: LostClosed}, 0)",
			"g.conclude(nil, &LostError{Reason: LostClosed}, 0)\n		_ = g.settle(leases[i])"}},
		[]killer{test(".", "TestCloseTellsOfAllLeasesBeforeItCallsHooks")}},
	{"expiry: an AllLease learns of the end of a lock after its Done is closed",
		[]patch{{"lease.go", "for _, n := range l.counts {", "for _, n := range l.counts[:0] {"}},
		[]killer{test(".", "TestErrOfAnAllLeaseDoesNotWaitForHooks")}},
}
