package election_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/internal/testing/redistest"
)

const patience = 30 * time.Second // of these tests, for a machine that is busy

// elected is a candidate that has become the leader.
type elected struct {
	who  int
	term uint64
}

// TestRealServers lets candidates with all drivers compete for one key, on one Redis and on a Redlock. A leader
// resigns, one dies without a release, and one ends.
func TestRealServers(t *testing.T) {
	t.Parallel()
	servers := make([]string, 4)
	for i := range servers {
		servers[i] = redistest.Start(t).Addr()
	}
	for name, url := range map[string]func(driver string) string{
		"single":  func(driver string) string { return "redis+" + driver + "://" + servers[0] },
		"redlock": func(driver string) string { return "redlock+" + driver + "://" + strings.Join(servers[1:], ",") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			terms := make(chan elected, 10)
			var es []*election.Election
			var clients []locker.Locker
			var stops []context.CancelFunc
			var ended []chan error
			for i, driver := range []string{"goredis", "redigo", "rueidis"} {
				c, err := config.Open(t.Context(), url(driver), locker.TTL(2*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				e := election.New(c, "office", election.Config{
					Identity: driver,
					OnError:  func(err error) { t.Log(err) },
					OnElected: func(ctx context.Context, term election.Term) error {
						terms <- elected{i, term.Number}
						<-ctx.Done()
						return nil
					},
				})
				ctx, cancel := context.WithCancel(t.Context())
				result := make(chan error, 1)
				go func() { result <- e.Run(ctx) }()
				es, clients = append(es, e), append(clients, c)
				stops, ended = append(stops, cancel), append(ended, result)
			}
			last := elected{}
			next := func() elected {
				t.Helper()
				select {
				case now := <-terms:
					if now.term <= last.term {
						t.Errorf("term %d after %d", now.term, last.term)
					}
					last = now
					return now
				case <-time.After(patience):
					t.Fatal("nobody leads")
				}
				return last
			}
			first := next()
			if err := es[first.who].Resign(t.Context()); err != nil {
				t.Error(err)
			}
			second := next()
			if second.who == first.who {
				t.Errorf("%d has resigned and leads again, although others waited", first.who)
			}
			sees(t, clients[first.who], second)

			_ = clients[second.who].(interface{ Close() error }).Close() // the lock stays until its TTL ends
			third := next()
			sees(t, clients[third.who], third)
			if err := <-ended[second.who]; err == nil {
				t.Error("Run goes on without its client")
			}
			stops[third.who]()
			fourth := next()
			if third.who == fourth.who {
				t.Errorf("%d has ended and leads again", third.who)
			}
			stops[fourth.who]()
			for _, who := range []int{third.who, fourth.who} {
				if err := <-ended[who]; err != nil {
					t.Errorf("Run of %d: %v", who, err)
				}
			}
		})
	}
}

// sees checks that an observer learns of the leader.
func sees(t *testing.T, l locker.Locker, want elected) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for leader, err := range election.Observe(ctx, l, "office") {
		if err == nil && leader.Term == want.term {
			if leader.Identity != []string{"goredis", "redigo", "rueidis"}[want.who] {
				t.Errorf("term %d is led by %s", want.term, leader.Identity)
			}
			return
		}
	}
	t.Errorf("an observer does not see term %d", want.term)
}
