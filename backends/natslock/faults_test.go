package natslock_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/natslock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/contention"
	"github.com/golocker/locker/internal/testing/short"
)

// siege is a cluster whose clients contend for a lock.
type siege struct {
	cluster
	*contention.Siege
}

// besiege lets n clients contend for a lock. They stay connected until the test ends, so that what they leave behind
// can be cleaned up.
func besiege(t *testing.T, c cluster, n int) *siege {
	t.Helper()
	s := &siege{c, &contention.Siege{TB: t, Keys: []string{"k"}, Stuck: c.logs}}
	for range n {
		opened, err := config.Open(t.Context(), c.url())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = opened.Close() })
		s.Join(opened)
	}
	s.More(1, "the first grant")
	return s
}

// progress waits until there were n more grants.
func (s *siege) progress(n int) { s.More(n, "more grants") }

// everybody waits until each client was granted the lock once more.
func (s *siege) everybody() { s.Everybody("a grant for each client") }

// fault is something that happens to a cluster while clients contend for a lock. It returns when it is over.
type fault struct {
	name string
	do   func(l *siege)
}

var faults = []fault{
	// Its lock ends with its TTL, by the clock of the next leader.
	{"the leader is killed, and then a holder", func(l *siege) {
		opened, err := config.Open(context.Background(), l.url())
		if err != nil {
			l.TB.Fatal(err)
		}
		defer opened.Close()
		s := l.leader()
		l.within("a lock", func(ctx context.Context) error {
			lease, err := opened.Lock(ctx, "k", locker.TTL(3*time.Second), locker.NoRenewal())
			if err == nil {
				l.Had(contention.Hold{Caller: -1, Key: "k", Fence: lease.Fence(), From: time.Now(), To: lease.Until()})
			}
			return err
		})
		s.Kill()
		l.progress(5)
		s.Restart()
	}},
	// When it goes on, it believes for a moment that it is the leader still.
	{"the leader is stopped", func(l *siege) {
		s := l.leader()
		s.Pause()
		defer s.Resume()
		l.progress(5)
	}},
	// All clients are connected to it. They go to another server, although it answers their pings and reads.
	{"the leader is cut off from the other servers", func(l *siege) {
		leader := l.leader()
		var ups []func()
		for _, s := range l.servers {
			if s != leader {
				ups = append(ups, s.Down())
			}
		}
		l.everybody()
		for _, up := range ups {
			up()
		}
		defer leader.CutOff()()
		l.everybody()
	}},
	{"the leader is cut off from its clients", func(l *siege) {
		up := l.leader().Down()
		defer up()
		l.progress(5)
	}},
	{"the leader steps down", func(l *siege) {
		_ = l.leader()
		subject := "$JS.API.STREAM.LEADER.STEPDOWN.KV_" + natslock.DefaultBucket
		if _, err := l.js.Conn().Request(subject, nil, 5*time.Second); err != nil {
			l.TB.Logf("step down: %v", err)
		}
	}},
	{"connections are cut", func(l *siege) {
		for range 10 {
			for _, s := range l.servers {
				s.Cut()
			}
			l.progress(1)
		}
	}},
	{"all servers are killed", func(l *siege) {
		for _, s := range l.servers {
			s.Kill()
		}
		for _, s := range l.servers {
			s.Restart()
		}
	}},
	{"the disks are full", func(l *siege) {
		ctx := context.Background()
		full := jetstream.StreamConfig{Name: "FULL", Subjects: []string{"full"}, Replicas: len(l.servers)}
		l.within("another stream", func(ctx context.Context) error {
			_, err := l.js.CreateOrUpdateStream(ctx, full)
			return err
		})
		junk := make([]byte, 64<<10)
		l.within("a full disk", func(ctx context.Context) error {
			for {
				if _, err := l.js.Publish(ctx, "full", junk); err != nil {
					return nil
				}
			}
		})
		contention.Rest(ctx, nil, time.Second)
		l.within("room on the disk", func(ctx context.Context) error { return l.js.DeleteStream(ctx, "FULL") })
	}},
}

// leadersEnv is how many leaders TestFaults kills, each with a holder, instead of all that it does without it.
const leadersEnv = "LOCKER_NATS_LEADERS"

// While clients contend for a lock, the servers fail. Nobody holds the lock twice, tokens grow, each client is served
// afterwards, and nothing is left behind.
func TestFaults(t *testing.T) {
	const clusters = 2 // at the same time, each with its part of the faults
	all := short.Part(t, 1, faults)
	if leaders, _ := strconv.Atoi(os.Getenv(leadersEnv)); leaders > 0 {
		all = slices.Repeat(faults[:1], leaders)
	}
	for n := range min(clusters, len(all)) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			l := besiege(t, startCluster(t, "-c", smallDisk(t)), 4)
			var pauses []time.Duration
			for i := n; i < len(all); i += clusters {
				t.Log(all[i].name)
				began := time.Now()
				all[i].do(l)
				l.everybody()
				pauses = append(pauses, l.pause(began))
			}
			l.Clean()
			l.nothingLeft()
			slices.Sort(pauses)
			t.Logf("%d faults; without a grant for %v, median, and for %v at most", len(pauses), pauses[len(pauses)/2],
				pauses[len(pauses)-1])
		})
	}
}

// pause returns the longest time without a grant since a time.
func (s *siege) pause(since time.Time) (longest time.Duration) {
	s.Until("the grants are counted", func(holds []contention.Hold) bool {
		slices.SortFunc(holds, func(a, b contention.Hold) int { return a.From.Compare(b.From) })
		for i, h := range holds {
			if i > 0 && h.From.After(since) {
				longest = max(longest, h.From.Sub(holds[i-1].From))
			}
		}
		return true
	})
	return longest
}

// smallDisk returns a configuration of a server that stores little.
func smallDisk(t testing.TB) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "nats.conf")
	settings := "jetstream { max_file_store: 8MB, max_memory_store: 64MB }\n"
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
