package recovery

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/testserver"
)

// kind is a way in which servers forget.
type kind struct {
	name string
	what string // what happens
	args []string
	// inject breaks the nodes and repairs them.
	inject func(b *testbed, nodes []int)
	// forgets: locks are forgotten, so without the guard some must have had two holders.
	forgets bool
	// replicated: each node has a replica.
	replicated bool
	// moves: other servers take the places of the nodes.
	moves bool
	// clock: the servers' wall clocks can be moved.
	clock bool
	// debug: DEBUG has to be allowed.
	debug bool
	// blocked: some locks may be out of reach for long, because clocks are behind, or old waiters are back.
	blocked bool
	// short: it is part of every `go test`.
	short bool
}

// lag is how old the data are that a server comes back with. Most locks have another owner by then.
const lag = ttl * 3 / 4

// each calls f for all of the nodes at once and waits.
func each(nodes []int, f func(node int)) {
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() { f(n) })
	}
	wg.Wait()
}

// eventually waits until cond holds.
func (b *testbed) eventually(what string, cond func() bool) {
	for end := time.Now().Add(hangLimit); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			b.Errorf("not within %v: %s", hangLimit, what)
			return
		}
	}
}

// cmd sends a command, and repeats it while the server refuses it.
func (b *testbed) cmd(s *redistest.Server, args ...any) {
	b.eventually(fmt.Sprint(args...), func() bool {
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

// isolate breaks the connections between the nodes and their replicas, and returns a while later.
func (b *testbed) isolate(nodes []int) {
	each(nodes, func(n int) { b.cmd(b.replicas[n], "REPLICAOF", "127.0.0.1", 1) }) // nobody is there
	time.Sleep(lag)
}

// promoted kills the nodes, and has other servers take their places.
func (b *testbed) promoted(nodes []int, next []*redistest.Server) {
	each(nodes, func(n int) {
		b.servers[n].Kill()
		b.cmd(next[n], "REPLICAOF", "NO", "ONE")
		b.proxies[n].Redirect(next[n].Addr())
		b.proxies[n].Cut()
	})
}

// follow makes s have the data of master, and no other.
func (b *testbed) follow(s, master *redistest.Server) {
	host, port, _ := net.SplitHostPort(master.Addr())
	b.cmd(s, "REPLICAOF", host, port)
	b.eventually("a replica that has its data", func() bool {
		info, _ := s.Do("INFO", "replication")
		return strings.Contains(fmt.Sprint(info), "master_link_status:up")
	})
}

func (b *testbed) setBack(nodes []int, by time.Duration) {
	for _, n := range nodes {
		if err := b.clocks[n].Set(-by, 0); err != nil {
			b.Error(err)
		}
	}
}

func (b *testbed) clocksShow(nodes []int, back time.Duration) {
	for _, n := range nodes {
		b.eventually("a clock that moves", func() bool { return testserver.ClockShows(b.servers[n].Do, -back) })
	}
}

func clockBack(by time.Duration) func(b *testbed, nodes []int) {
	return func(b *testbed, nodes []int) {
		b.setBack(nodes, by)
		b.clocksShow(nodes, by)
	}
}

func kinds() []kind {
	return []kind{
		{
			name: "kill -9, back empty", forgets: true, short: true, what: "no persistence",
			inject: func(b *testbed, nodes []int) { b.restart(nodes) },
		},
		{
			name: "kill -9, back from an old RDB", forgets: true, blocked: true,
			what: "the last snapshot is 3 s old",
			inject: func(b *testbed, nodes []int) {
				b.saved(nodes)
				b.restart(nodes)
			},
		},
		{
			name: "power cut, AOF everysec", forgets: true, blocked: true,
			args: []string{"--appendonly", "yes", "--appendfsync", "everysec"},
			what: "killed, and what was appended in the last 3 s is cut off, as if it had not been synced",
			inject: func(b *testbed, nodes []int) {
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
		},
		{
			name: "FLUSHALL", forgets: true, short: true, what: "the data is deleted",
			inject: func(b *testbed, nodes []int) { each(nodes, func(n int) { b.cmd(b.servers[n], "FLUSHALL") }) },
		},
		{
			name: "an empty replica is promoted", forgets: true, moves: true,
			what: "the server is killed, and another one takes its place that has none of its data yet",
			inject: func(b *testbed, nodes []int) {
				var next []*redistest.Server
				for range b.servers {
					next = append(next, redistest.Start(b.T, "--replicaof", "127.0.0.1", "1"))
				}
				b.promoted(nodes, next)
			},
		},
		{
			name: "a stale replica is promoted", forgets: true, blocked: true, moves: true, replicated: true,
			what: "the server is killed, and a replica takes its place that has not heard of it for 3 s",
			inject: func(b *testbed, nodes []int) {
				b.isolate(nodes)
				b.promoted(nodes, b.replicas)
			},
		},
		{
			name: "a stale replica is promoted, and gives way", forgets: true, blocked: true, replicated: true,
			what: "the same, but the old server follows it, has its data, and is promoted again, all in one process",
			inject: func(b *testbed, nodes []int) {
				b.isolate(nodes)
				each(nodes, func(n int) {
					b.cmd(b.replicas[n], "REPLICAOF", "NO", "ONE")
					b.follow(b.servers[n], b.replicas[n])
					b.cmd(b.servers[n], "REPLICAOF", "NO", "ONE")
					b.replicas[n].Kill()
				})
			},
		},
		{
			name: "DEBUG RELOAD", debug: true, what: "the data is saved, and loaded again by the same process",
			inject: func(b *testbed, nodes []int) { each(nodes, func(n int) { b.cmd(b.servers[n], "DEBUG", "RELOAD") }) },
		},
		{
			name: "clock back 1 s", clock: true, what: "the server's wall clock is stepped back",
			inject: clockBack(time.Second), blocked: true,
		},
		{
			name: "clock back 1 h", clock: true, what: "the same", inject: clockBack(time.Hour), blocked: true,
		},
		{
			name: "old RDB, clock back 1 s", clock: true, forgets: true, blocked: true,
			what: "killed, and back from a snapshot that is 8 s old, with the clock 1 s behind: locks come back that had ended",
			inject: func(b *testbed, nodes []int) {
				b.saved(nodes)
				time.Sleep(ttl * 5 / 4) // and the clock is set back by less
				b.setBack(nodes, time.Second)
				b.restart(nodes)
				b.clocksShow(nodes, time.Second)
			},
		},
	}
}
