package faults

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/testserver"
)

// lapse is a way in which servers forget, under many locks. If the kind forgets, some of them must have two holders
// without the guard.
type lapse struct {
	kind
	// blocked: some locks may be out of reach for long, because clocks are behind, or old waiters are back.
	blocked bool
	// short: it is part of every `go test`.
	short bool
}

// lapseTTL is that of locks on servers that forget, and lag how old the data are that a server comes back with. Most
// locks have another owner by then.
const (
	lapseTTL = 4 * time.Second
	lag      = lapseTTL * 3 / 4
)

// named returns a kind of the episodes.
func named(name string) kind {
	all := kinds()
	return all[slices.IndexFunc(all, func(k kind) bool { return k.name == name })]
}

// cmd sends a command, and repeats it while the server refuses it.
func (b *testbed) cmd(s *redistest.Server, args ...any) {
	b.eventually(strings.TrimSuffix(args[0].(string), " "), func() bool {
		_, err := s.Do(args...)
		return err == nil
	})
}

// saved writes the nodes' data to disk, and returns a moment later.
func (b *testbed) saved(nodes []int) {
	each(nodes, func(n int) { b.cmd(b.servers[n], "SAVE") })
	time.Sleep(lag)
}

// restart kills the nodes, and starts them again.
func (b *testbed) restart(nodes []int) {
	each(nodes, func(n int) { b.servers[n].Kill() })
	for _, n := range nodes { // the test's own goroutine may fail it
		b.servers[n].Restart()
	}
}

// logs returns the file to which a server appends, and its size.
func (b *testbed) logs(n int) (path string, size int64) {
	_ = filepath.WalkDir(b.servers[n].Dir(), func(p string, _ os.DirEntry, err error) error {
		if err == nil && (strings.HasSuffix(p, ".incr.aof") || filepath.Base(p) == "appendonly.aof") {
			if info, err := os.Stat(p); err == nil {
				path, size = p, info.Size()
			}
		}
		return nil
	})
	return path, size
}

// forsaken breaks the connections between the nodes and their replicas, and returns a while later.
func (b *testbed) forsaken(nodes []int) {
	each(nodes, func(n int) { b.cmd(b.replicas[n], "REPLICAOF", "127.0.0.1", 1) }) // nobody is there
	time.Sleep(lag)
}

// promoted kills the nodes, and has other servers take their places.
func (b *testbed) promoted(nodes []int, next []*redistest.Server) {
	each(nodes, func(n int) {
		b.servers[n].Kill()
		b.cmd(next[n], "REPLICAOF", "NO", "ONE")
		b.proxies[0][n].Redirect(next[n].Addr())
		b.proxies[0][n].Cut()
	})
}

func clockBack(by time.Duration) func(b *testbed, nodes []int, _ time.Duration) {
	return func(b *testbed, nodes []int, _ time.Duration) { b.clockAhead(nodes, -by, 0) }
}

// lapses are the faults of TestRecovery. They take as long as they take.
func lapses() []lapse {
	return []lapse{
		{kind: named("kill -9, back empty"), short: true},
		{blocked: true, kind: kind{
			name: "kill -9, back from an old RDB", forgets: true,
			inject: func(b *testbed, nodes []int, _ time.Duration) { // the last snapshot is 3 s old
				b.saved(nodes)
				b.restart(nodes)
			},
		}},
		{blocked: true, kind: kind{
			name: "power cut, AOF everysec", forgets: true, args: aofEverysec,
			inject: func(b *testbed, nodes []int, _ time.Duration) { // what was not synced is cut off
				synced := map[int]int64{}
				for _, n := range nodes {
					_, synced[n] = b.logs(n)
				}
				time.Sleep(lag)
				each(nodes, func(n int) { b.servers[n].Kill() })
				for _, n := range nodes {
					path, size := b.logs(n)
					if size <= synced[n] {
						b.Errorf("nothing was appended to %q in %v", path, lag)
					} else if err := os.Truncate(path, synced[n]); err != nil {
						b.Error(err)
					}
					b.servers[n].Restart()
				}
			},
		}},
		{kind: named("FLUSHALL, at once"), short: true},
		{kind: kind{
			name: "an empty replica is promoted", forgets: true, moves: true,
			inject: func(b *testbed, nodes []int, _ time.Duration) {
				var next []*redistest.Server
				for range b.servers {
					next = append(next, redistest.Start(b.T, "--replicaof", "127.0.0.1", "1"))
				}
				b.promoted(nodes, next)
			},
		}},
		{blocked: true, kind: kind{
			name: "a stale replica is promoted", forgets: true, moves: true, replicated: true,
			inject: func(b *testbed, nodes []int, _ time.Duration) { // it has not heard of the server for 3 s
				b.forsaken(nodes)
				b.promoted(nodes, b.replicas)
			},
		}},
		{blocked: true, kind: kind{
			name: "a stale replica is promoted, and gives way", forgets: true, replicated: true,
			inject: func(b *testbed, nodes []int, _ time.Duration) { // to the old server, which has followed it
				b.forsaken(nodes)
				each(nodes, func(n int) {
					b.cmd(b.replicas[n], "REPLICAOF", "NO", "ONE")
					b.servers[n].Follow(b, b.replicas[n])
					b.cmd(b.servers[n], "REPLICAOF", "NO", "ONE")
					b.replicas[n].Kill()
				})
			},
		}},
		{kind: kind{
			name: "DEBUG RELOAD", debug: true,
			inject: func(b *testbed, nodes []int, _ time.Duration) {
				each(nodes, func(n int) { b.cmd(b.servers[n], "DEBUG", "RELOAD") })
			},
		}},
		{blocked: true, kind: kind{name: "clock back 1 s", clock: true, inject: clockBack(time.Second)}},
		{blocked: true, kind: kind{name: "clock back 1 h", clock: true, inject: clockBack(time.Hour)}},
		{blocked: true, kind: kind{
			name: "old RDB, clock back 1 s", clock: true, forgets: true,
			inject: func(b *testbed, nodes []int, _ time.Duration) { // locks come back that had ended
				b.saved(nodes)
				time.Sleep(lapseTTL * 5 / 4) // and the clock is set back by less
				for _, n := range nodes {
					b.clockIs(n, -time.Second, 0)
				}
				b.restart(nodes)
				each(nodes, func(n int) {
					b.eventually("a clock that moves", func() bool {
						return testserver.ClockShows(b.servers[n].Do, -time.Second)
					})
				})
			},
		}},
	}
}

// failovers are ways in which the replica of one master takes over.
func failovers() []lapse {
	all := []lapse{takesOverFrom("has all", func(*testbed) {})}
	return append(all,
		takesOverFrom("has not heard of the master for up to 0.2 s", func(b *testbed) {
			b.cmd(b.replicas[0], "REPLICAOF", "127.0.0.1", 1)
			time.Sleep(rand.N(200 * time.Millisecond))
		}),
		takesOverFrom("has not heard of it for 3 s", func(b *testbed) { b.forsaken([]int{0}) }),
		takesOverFrom("was frozen for 3 s, until the master was killed", func(b *testbed) {
			b.replicas[0].Pause()
			time.Sleep(lag)
			b.servers[0].Kill()
			b.replicas[0].Resume()
		}),
	)
}

// takesOverFrom kills the master after prepare, has its replica take its place, and gives the new master a replica.
func takesOverFrom(name string, prepare func(b *testbed)) lapse {
	return lapse{blocked: true, kind: kind{
		name: name, moves: true, replicated: true,
		inject: func(b *testbed, nodes []int, _ time.Duration) {
			prepare(b)
			b.promoted(nodes, b.replicas)
			redistest.StartReplica(b.T, b.replicas[0])
		},
	}}
}
