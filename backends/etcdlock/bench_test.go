package etcdlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

// cycle locks a key, and unlocks it.
type cycle func(ctx context.Context, key string) error

// contenders are this package, with one Client and with one for each goroutine, and what etcd has itself. Each makes
// a cycle for one goroutine, or none. alone says that nobody else uses its keys: the goroutines can then share a
// session. Sessions must differ otherwise.
var contenders = []struct {
	name   string
	worker func(s *shared, alone bool) cycle
}{
	{"locker", func(s *shared, _ bool) cycle { return cycleOf(s.locker) }},
	{"Clients", func(s *shared, alone bool) cycle {
		if alone {
			return nil
		}
		l := etcdlock.New(s.client)
		s.b.Cleanup(func() { _ = l.Close() })
		return cycleOf(l)
	}},
	{"Mutex", func(s *shared, alone bool) cycle {
		session := s.session(alone)
		return func(ctx context.Context, key string) error {
			m := concurrency.NewMutex(session, "mutex/"+key)
			if err := m.Lock(ctx); err != nil {
				return err
			}
			return m.Unlock(ctx)
		}
	}},
	{"Election", func(s *shared, alone bool) cycle {
		session := s.session(alone)
		return func(ctx context.Context, key string) error {
			e := concurrency.NewElection(session, "election/"+key)
			if err := e.Campaign(ctx, ""); err != nil {
				return err
			}
			return e.Resign(ctx)
		}
	}},
}

func cycleOf(l locker.Locker) cycle {
	return func(ctx context.Context, key string) error {
		lease, err := l.Lock(ctx, key, locker.Label(""))
		if err != nil {
			return err
		}
		return lease.Unlock(ctx)
	}
}

// shared is what the workers of a scenario share.
type shared struct {
	b      *testing.B
	client *clientv3.Client
	locker *locker.Client
	common *concurrency.Session
}

func newShared(b *testing.B, m *etcdtest.Member) *shared {
	b.Helper()
	client := connect(b, clientv3.Config{Endpoints: []string{m.Addr()}})
	s := &shared{b: b, client: client, locker: etcdlock.New(client)}
	s.common = s.session(false)
	b.Cleanup(func() { _ = s.locker.Close() })
	return s
}

func (s *shared) session(common bool) *concurrency.Session {
	if common {
		return s.common
	}
	session, err := concurrency.NewSession(s.client)
	if err != nil {
		s.b.Fatal(err)
	}
	s.b.Cleanup(func() { _ = session.Close() })
	return session
}

const (
	visit  = 500 * time.Millisecond
	rounds = 5
)

// BenchmarkBeside measures acquisitions and releases by all contenders on one etcd, which writes to its disk as in
// production. The contenders take turns. The figures are the medians of the rounds: µs is the time from one cycle to
// the next of all goroutines together, which is the time of a hand-over if they share a key. msg is how many messages
// etcd received for a cycle, and log how many entries it wrote to its log, which is on disk.
func BenchmarkBeside(b *testing.B) {
	b.Setenv(etcdtest.NoFsync, "false")
	m := etcdtest.Start(b)
	for _, scenario := range []struct {
		goroutines int
		keys       string
	}{{1, "own"}, {128, "own"}, {16, "one"}} {
		b.Run(fmt.Sprintf("goroutines=%d/keys=%s", scenario.goroutines, scenario.keys), func(b *testing.B) {
			s := newShared(b, m)
			workers := map[string][]cycle{}
			for _, c := range contenders {
				for range scenario.goroutines {
					if do := c.worker(s, scenario.keys == "own"); do != nil {
						workers[c.name] = append(workers[c.name], do)
					}
				}
			}
			seen := map[string][]float64{}
			for round := range rounds + 1 {
				for _, c := range contenders {
					if len(workers[c.name]) == 0 {
						continue
					}
					took, messages, entries := measure(b, m, workers[c.name], scenario.keys)
					if round > 0 { // the first one is for warming up
						seen[c.name+"-µs"] = append(seen[c.name+"-µs"], took)
						seen[c.name+"-msg"] = append(seen[c.name+"-msg"], messages)
						seen[c.name+"-log"] = append(seen[c.name+"-log"], entries)
					}
				}
			}
			for unit, all := range seen {
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2], unit)
			}
			b.ReportMetric(0, "ns/op") // says nothing here
		})
	}
}

// measure lets the workers make cycles for a visit. It returns the microseconds, messages and log entries of a cycle.
func measure(b *testing.B, m *etcdtest.Member, workers []cycle, keys string) (took, messages, entries float64) {
	b.Helper()
	const received, committed = "grpc_server_msg_received_total", "etcd_server_proposals_committed_total"
	messages, entries = m.Metric(received), m.Metric(committed)
	var cycles atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for i, do := range workers {
		key := "one"
		if keys == "own" {
			key = fmt.Sprint(i)
		}
		wg.Go(func() {
			for time.Since(start) < visit {
				if err := do(b.Context(), key); err != nil {
					b.Error(err)
					return
				}
				cycles.Add(1)
			}
		})
	}
	wg.Wait()
	n := float64(cycles.Load())
	took = float64(time.Since(start).Microseconds()) / n
	return took, (m.Metric(received) - messages) / n, (m.Metric(committed) - entries) / n
}
