package faults

import "time"

// kind is a fault.
type kind struct {
	name string
	what string // for the report
	args []string
	// strike breaks the nodes for about d and mends them.
	strike func(b *bed, nodes []int, d time.Duration)
	// refusal is what servers say meanwhile, and have to have said.
	refusal string

	// What is not promised (docs/safety.md). forgets: nodes forget locks before their time, or their clocks are stepped
	// forward, so exclusion may fail. instantly: and vote again within 65 ms, so that on Redlock tokens may fail, too.
	forgets, instantly bool
	// rivals: two servers grant a lock at the same time, with tokens of their own clocks. In the same microsecond they
	// are equal.
	rivals bool
	// unseen: servers lose data, or are given other data, without a command that says so, so a witness is mistaken.
	unseen bool
	// clock: the servers' wall clocks can be moved, which needs a C compiler.
	clock bool
	// password: clients give one. A server that has none takes any.
	password bool
	// brief: all TTLs are short.
	brief bool
	// clustered: the servers are three masters of a Redis Cluster, replicated: with a replica each. There are no
	// proxies, because clients take the servers' addresses from the servers.
	clustered, replicated bool
	// watched: the servers are a master and its replica, of whom a sentinel watches over. No proxies there, either.
	watched bool
	// parted: what is between these servers can fail.
	parted bool
	// queued: only Clients that queue. Of the driver rueidis, others would crash: the client panics when an
	// UNSUBSCRIBE, which it follows by a PING, is answered by anything but PONG, LOADING and BUSY, and MISCONF is said
	// to PING as well; and when the UNSUBSCRIBE is refused with BUSY and the PING, a moment later, is not.
	queued bool
	// clients: it hits clients, whatever the placement says.
	clients bool
	// behind is by how much longer keys may live than they should.
	behind time.Duration
	// most is the longest d.
	most time.Duration
}

// alone reports that a lock is on one server, whatever else there is.
func (k kind) alone() bool { return k.clustered || k.watched }

func kinds() []kind {
	var all []kind
	for _, group := range [][]kind{processKinds, clientKinds, networkKinds, dataKinds, refusalKinds, clockKinds,
		clusterKinds, partitionKinds, sentinelKinds} {
		all = append(all, group...)
	}
	return all
}
