package cluster

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	valkeyclient "github.com/valkey-io/valkey-go"
	"go.uber.org/goleak"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/drivers/rueidisdriver"
	"github.com/golocker/locker/drivers/valkeydriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/single"
)

// movesEnv is the number of slots that move under each driver. There are half as many failovers.
const movesEnv = "LOCKER_CLUSTER"

func init() { redis.SetLogger(silent{}) }

// silent drops what go-redis writes to the process's log when servers are gone.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, redistest.Lingering()...) }

// open has the drivers of clients that know clusters, with the clients' defaults but for what the drivers recommend.
var open = map[string]func(t *testing.T, addrs []string) drivers.Driver{
	"goredis": func(t *testing.T, addrs []string) drivers.Driver {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		return goredisdriver.New(c)
	},
	"rueidis": func(t *testing.T, addrs []string) drivers.Driver {
		c, err := rueidisclient.NewClient(rueidisclient.ClientOption{InitAddress: addrs})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return rueidisdriver.New(c)
	},
	"valkey": func(t *testing.T, addrs []string) drivers.Driver {
		c, err := valkeyclient.NewClient(valkeyclient.ClientOption{InitAddress: addrs})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return valkeydriver.New(c)
	},
}

// Slots move and masters fail under load. Nobody waits for ever, and tokens grow.
func TestCluster(t *testing.T) {
	moves, failovers, names := 1, 0, slices.Sorted(maps.Keys(open))
	if text := os.Getenv(movesEnv); text != "" {
		var err error
		if moves, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		failovers = moves / 2
	} else {
		names = short.Part(t, 1, names)
	}
	var rows []string
	for _, name := range names {
		t.Run(name, func(t *testing.T) { rows = append(rows, trial(t, name, moves, failovers)...) })
	}
	text := "| driver | event | times | without a lock, median | without a lock, longest | calls that failed |\n" +
		"| --- | --- | --: | --: | --: | --: |\n" + strings.Join(rows, "\n") + "\n"
	if failovers > 0 {
		text += "\n" + costs(t, names)
	}
	t.Log(redistest.Version(redistest.Binary(t)) + "\n\n" + text)
}

// trial lets slots move and masters fail under one driver. It returns the lines of the report.
func trial(t *testing.T, driver string, moves, failovers int) (rows []string) {
	c := redistest.StartCluster(t, 3, true, "--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0")
	w, ctx := newLoad(), t.Context()
	ctx, stop := context.WithCancel(ctx)
	var users sync.WaitGroup
	for range clients {
		l := single.New(open[driver](t, c.Addrs()))
		users.Go(func() {
			w.run(ctx, t, l)
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	b := &testbed{T: t, cluster: c, load: w}
	b.settle(w.locks)
	for _, e := range []struct {
		name  string
		times int
		event func(i int) (hit []*lock)
	}{
		{"a slot migrates", moves, b.migrate},
		{"CLUSTER FAILOVER", failovers / 2, b.takeOver},
		{"the master is killed", failovers - failovers/2, b.kill},
	} {
		var gaps []time.Duration
		failed := w.failed.Load()
		for i := range e.times {
			for _, l := range w.locks {
				l.since()
			}
			b.gap = 0
			b.settle(e.event(i))
			gaps = append(gaps, b.gap)
		}
		if len(gaps) > 0 {
			slices.Sort(gaps)
			rows = append(rows, fmt.Sprintf("| %s | %s | %d | %v | %v | %d |", driver, e.name, len(gaps),
				gaps[len(gaps)/2].Round(time.Millisecond), gaps[len(gaps)-1].Round(time.Millisecond), w.failed.Load()-failed))
		}
	}
	stop()
	users.Wait()
	t.Logf("%s: %d acquisitions, %d of them while another client still believed to have the lock", driver,
		w.taken.Load(), w.overlaps.Load())
	return rows
}

// testbed is a cluster under load. Its methods cause one event each, and return the locks that it hits.
type testbed struct {
	*testing.T
	cluster *redistest.Cluster
	load    *load
	gap     time.Duration // the longest time without a lock in this event
}

func (b *testbed) slot(l *lock) int { return b.cluster.Slot(b.T, single.DefaultPrefix+l.key) }

// settle waits until each of the locks has been acquired again.
func (b *testbed) settle(hit []*lock) {
	b.Helper()
	since := time.Now()
	for _, l := range hit {
		for {
			taken, gap := l.since()
			b.gap = max(b.gap, gap)
			if taken.After(since) {
				break
			}
			if time.Since(since) > forever {
				b.Fatalf("nobody has had %s for %v", l.key, forever)
			}
			<-time.After(time.Millisecond)
		}
	}
}

// masters returns the servers that are masters now.
func (b *testbed) masters() (masters, replicas []*redistest.Server) {
	for _, s := range b.cluster.Servers() {
		if s.IsMaster() {
			masters = append(masters, s)
		} else {
			replicas = append(replicas, s)
		}
	}
	return masters, replicas
}

// migrate moves the slot of a lock to another master, key by key.
func (b *testbed) migrate(i int) (hit []*lock) {
	l := b.load.locks[i%len(b.load.locks)]
	from := b.cluster.Owner(b.T, b.slot(l))
	masters, _ := b.masters()
	masters = slices.DeleteFunc(masters, func(s *redistest.Server) bool { return s == from })
	m := b.cluster.Move(b.T, b.slot(l), masters[rand.N(len(masters))])
	for range 5 {
		<-time.After(rand.N(20 * time.Millisecond))
		m.Key()
	}
	m.Finish()
	return []*lock{l}
}

// of returns the locks of a master.
func (b *testbed) of(master *redistest.Server) (locks []*lock) {
	for _, l := range b.load.locks {
		if b.cluster.Owner(b.T, b.slot(l)) == master {
			locks = append(locks, l)
		}
	}
	return locks
}

// busiest returns the master of a lock, and its locks.
func (b *testbed) busiest(i int) (master *redistest.Server, hit []*lock) {
	master = b.cluster.Owner(b.T, b.slot(b.load.locks[i%len(b.load.locks)]))
	return master, b.of(master)
}

// replicaOf returns the replica of a master.
func (b *testbed) replicaOf(master *redistest.Server) *redistest.Server {
	b.Helper()
	_, port, _ := strings.Cut(master.Addr(), ":")
	for end := time.Now().Add(forever); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		for _, s := range b.cluster.Servers() {
			role, err := s.Do("ROLE")
			if err == nil && strings.HasPrefix(fmt.Sprint(role), "[slave 127.0.0.1 "+port+" connected") {
				return s
			}
		}
	}
	b.Fatalf("%s has no replica", master.Addr())
	return nil
}

func (b *testbed) takeOver(i int) (hit []*lock) {
	master, hit := b.busiest(i)
	b.cluster.Failover(b.T, b.replicaOf(master))
	return hit
}

func (b *testbed) kill(i int) (hit []*lock) {
	master, hit := b.busiest(i)
	replica := b.replicaOf(master)
	master.Kill()
	for end := time.Now().Add(forever); !replica.IsMaster(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("no replica has taken over from %s", master.Addr())
		}
	}
	b.settle(hit)
	master.Restart()
	b.cluster.Await(b.T)
	return hit
}
