package main

// etcdMutants are bugs of the backend for etcd.
var etcdMutants = []mutant{
	inEtcd("an extension renews the lease", "etcd.go", "		b.numbers.skip(l.id)\n",
		"		b.numbers.skip(l.id)\n		if left, err := b.renewals.await(ctx, b.renewals.send(l.id)); err == nil && left > 0 {\n"+
			"			return nil\n		}\n",
		"TestHoldersLeasesAreNeverRenewed|TestLeaderThatForgetsRenewalsEndsNoLock"),
	inEtcd("a lease that a waiter has renewed becomes that of a holder", "queue.go", "!w.lease.renewed && ", "",
		"TestHoldersLeasesAreNeverRenewed"),
	inEtcd("a move that comes late undoes a later one", "move.go", `"<", l.id`, `"!=", l.id`, "TestLateRequests"),
	inEtcd("the release of a lock ends others with the same lease", "lease.go", "l.entries.Add(-1) == 0",
		"l.entries.Add(-1) >= 0", "TestReleaseSparesLocksWithTheSameLease"),
	inEtcd("a lease is revoked although the entry may have it", "move.go", "		if refused {\n",
		"		if _ = refused; true {\n", "TestExtensionWithoutAnswerEndsNoLock"),
	inEtcd("a transaction that is too large fails", "move.go", "	case len(moves) > 1 && ", "	case false && ",
		"TestExtensionsFitIntoTransactions"),
	inEtcd("TTLs are rounded down", "lease.go", "(d + time.Second - 1) / time.Second", "d / time.Second",
		"TestTTLsAreRoundedUp"),
}

func inEtcd(name, file, before, after, tests string) mutant {
	return mutant{"etcd: " + name, []patch{{"backends/etcdlock/" + file, before, after}},
		[]killer{testIn("backends/etcdlock", tests)}}
}
