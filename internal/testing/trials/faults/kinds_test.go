package faults

import "time"

// kind is a kind of fault.
type kind struct {
	name string
	what string // description for the report
	args []string
	// inject breaks the nodes for about d and repairs them.
	inject func(b *testbed, nodes []int, d time.Duration)
	// refusal is the error that servers return meanwhile. They must have returned it.
	refusal string

	// These fields say what is not promised (docs/safety.md). forgets: nodes forget locks before their time, or their
	// clocks are stepped forward, so exclusion may fail. instantly: such nodes vote again within 65 ms, so on Redlock
	// tokens may fail, too.
	forgets, instantly bool
	// rivals: two servers grant a lock at the same time, with tokens from their own clocks. Tokens of the same
	// microsecond are equal.
	rivals bool
	// unseen: servers lose data, or get other data, without a command that a witness could see.
	unseen bool
	// clock: the servers' wall clocks can be moved, which needs a C compiler.
	clock bool
	// password: clients give a password. A server without a password accepts any.
	password bool
	// brief: all TTLs are short.
	brief bool
	// clustered: the servers are three masters of a Redis Cluster. There are no proxies, because clients get the
	// addresses of the servers from the servers.
	clustered bool
	// replicated: each server has a replica.
	replicated bool
	// moves: other servers take the places of the nodes, so all clients share a proxy before each.
	moves bool
	// debug: DEBUG has to be allowed.
	debug bool
	// watched: the servers are a master and its replica, which a sentinel monitors. There are no proxies, either.
	watched bool
	// parted: the network between these servers can fail.
	parted bool
	// clients: the fault hits clients, whatever the placement says.
	clients bool
	// behind is how much longer keys may live than they should.
	behind time.Duration
	// most is the longest d.
	most time.Duration
}

// alone reports whether a lock is on one server only, even if there are more servers.
func (k kind) alone() bool { return k.clustered || k.watched }

func kinds() []kind {
	var all []kind
	for _, group := range [][]kind{processKinds, clientKinds, networkKinds, dataKinds, refusalKinds, clockKinds,
		clusterKinds, partitionKinds, sentinelKinds} {
		all = append(all, group...)
	}
	return all
}
