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
	inEtcd("a grant rests on an old read", "entry.go", `clientv3.CreateRevision(holders(dir)), "<", revision+1)`,
		`clientv3.CreateRevision(holders(dir)), "<", revision+1<<50)`, "TestGroups"),
	inEtcd("a newcomer is granted what others were granted meanwhile", "entry.go",
		`clientv3.CreateRevision(dir), "<", revision+1)`, `clientv3.CreateRevision(dir), "<", revision+1<<50)`, "TestGroups"),
	inEtcd("a newcomer overtakes who comes meanwhile", "entry.go", "(&p.want), noneSince(", "(&p.want), nobodySince(",
		"TestGroups"),
	inEtcd("an upgrade of what has become a shared lock", "entry.go",
		"append(g.upgradeable(&p.want), noneSince(dir, g.revision))",
		"[]clientv3.Cmp{noneSince(dir, g.revision)}", "TestGroups"),
	inEtcd("what one transaction serves has one token", "group.go", "w.permits, w.offset = permits, len(served)",
		"w.permits = permits", "TestGroups"),
	inEtcd("who waits is served behind one that has no room", "group.go", "		default:\n			return served\n", "",
		"TestGroups"),
	inEtcd("locks of places are not seen", "entry.go", "		alone = append(alone, free(b.dir(name)))\n", "", "TestGroups"),
	inEtcd("an extension undoes a downgrade", "move.go",
		`put = clientv3.OpPut(m.entry, "", clientv3.WithLease(l.id), clientv3.WithIgnoreValue())`,
		"p := wanted(&m.req)\n		put = clientv3.OpPut(m.entry, p.text(), clientv3.WithLease(l.id))",
		"TestGroups"),
	inEtcd("TTLs are rounded down", "lease.go", "(d + time.Second - 1) / time.Second", "d / time.Second",
		"TestTTLsAreRoundedUp"),
}

func inEtcd(name, file, before, after, tests string) mutant {
	return mutant{"etcd: " + name, []patch{{"backends/etcdlock/" + file, before, after}},
		[]killer{testIn("backends/etcdlock", tests)}}
}
