package natslock_test

import (
	"cmp"
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
	"github.com/golocker/locker/internal/testing/short"
)

// fault is something that happens to a cluster while clients contend for a lock. It returns when it is over.
type fault struct {
	name string
	do   func(l *ledger)
}

var faults = []fault{
	// Its lock ends with its TTL, by the clock of the next leader.
	{"the leader is killed, and then a holder", func(l *ledger) {
		opened, err := config.Open(context.Background(), l.url())
		if err != nil {
			l.t.Fatal(err)
		}
		defer opened.Close()
		s := l.leader()
		l.within("a lock", func(ctx context.Context) error {
			lease, err := opened.Lock(ctx, "k", locker.TTL(3*time.Second), locker.NoRenewal())
			if err == nil {
				l.granted(0, lease)
			}
			return err
		})
		s.Kill()
		l.progress(5)
		s.Restart()
	}},
	// When it goes on, it believes for a moment that it is the leader still.
	{"the leader is stopped", func(l *ledger) {
		s := l.leader()
		s.Pause()
		defer s.Resume()
		l.progress(5)
	}},
	// All clients are connected to it. They go to another server, although it answers their pings and reads.
	{"the leader is cut off from the other servers", func(l *ledger) {
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
	{"the leader is cut off from its clients", func(l *ledger) {
		up := l.leader().Down()
		defer up()
		l.progress(5)
	}},
	{"the leader steps down", func(l *ledger) {
		_ = l.leader()
		subject := "$JS.API.STREAM.LEADER.STEPDOWN.KV_" + natslock.DefaultBucket
		if _, err := l.js.Conn().Request(subject, nil, 5*time.Second); err != nil {
			l.t.Logf("step down: %v", err)
		}
	}},
	{"connections are cut", func(l *ledger) {
		for range 10 {
			for _, s := range l.servers {
				s.Cut()
			}
			l.progress(1)
		}
	}},
	{"all servers are killed", func(l *ledger) {
		for _, s := range l.servers {
			s.Kill()
		}
		for _, s := range l.servers {
			s.Restart()
		}
	}},
	{"the disks are full", func(l *ledger) {
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
		rest(ctx, time.Second)
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
			l := &ledger{cluster: startCluster(t, "-c", smallDisk(t))}
			l.run(4, func() {
				var pauses []pause
				for i := n; i < len(all); i += clusters {
					t.Log(all[i].name)
					_ = l.longest()
					all[i].do(l)
					l.everybody()
					pauses = append(pauses, l.longest())
				}
				slices.SortFunc(pauses, func(a, b pause) int { return cmp.Compare(a.length, b.length) })
				worst := pauses[len(pauses)-1]
				t.Logf("%d faults; without a grant for %v, median, and for %v at most, from %v, when attempts were told: %v",
					len(pauses), pauses[len(pauses)/2].length, worst.length, worst.from.UTC(), worst.told)
			})
		})
	}
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
