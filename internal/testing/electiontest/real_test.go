// Package electiontest tests package election on real servers. It is not in that package because go mod tidy writes
// into the go.sum of a program what the tests of the packages that it uses need.
package electiontest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/lockertrace"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const hangLimit = 30 * time.Second // of these tests, for a machine that is busy

// TestRealServers lets candidates with all drivers compete for one key, on one Redis and on a Redlock. A leader
// resigns, one dies without a release, and one ends. If the machine stalls, leaders lose their leases and others miss
// their turns. Then the contest is begun anew.
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
			const tries = 5
			for try := 1; ; try++ {
				c := newContest(t, url, fmt.Sprint("office", try))
				wrong := c.run(t)
				c.end()
				if wrong == nil {
					return
				}
				if !c.stalled.Load() || try == tries {
					t.Fatalf("contest %d: %v", try, wrong)
				}
				t.Logf("contest %d: %v, but the machine has stalled: once more", try, wrong)
			}
		})
	}
}

// contest is one election.
type contest struct {
	key     string
	rivals  []*rival
	terms   chan elected
	last    elected
	changes chan struct{} // has a value if a candidate has begun to wait
	stalled atomic.Bool   // something took as long as on a machine that stalls
}

type rival struct {
	driver string
	client *config.Opened
	closed atomic.Bool
	waits  atomic.Bool // it has a position among those that wait for the lock, or the turn to ask for it
	*election.Election
	stop  context.CancelFunc
	ended chan struct{} // closed when Run has returned
	err   error         // of Run
}

// elected is a candidate that has become the leader.
type elected struct {
	*rival
	term uint64
}

func newContest(t *testing.T, url func(driver string) string, key string) *contest {
	t.Helper()
	c := &contest{key: key, terms: make(chan elected, 1000), changes: make(chan struct{}, 1)}
	for _, driver := range []string{"goredis", "redigo", "rueidis"} {
		l, err := config.Open(t.Context(), url(driver), locker.TTL(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		one := &rival{driver: driver, client: l, ended: make(chan struct{})}
		one.Election = election.New(l, key, election.Config{
			Identity: driver,
			OnError: func(err error) {
				t.Log(driver, err)
				if !one.closed.Load() && (errors.Is(err, locker.ErrLost) || errors.Is(err, locker.ErrUnavailable)) {
					c.stalled.Store(true)
				}
			},
			OnElected: func(ctx context.Context, term election.Term) error {
				c.terms <- elected{one, term.Number}
				<-ctx.Done()
				return nil
			},
		})
		ctx, cancel := context.WithCancel(lockertrace.With(t.Context(), &lockertrace.Trace{
			Waiting: func(lockertrace.Waiting) {
				one.waits.Store(true)
				select {
				case c.changes <- struct{}{}:
				default:
				}
			},
			Attempted: func(lockertrace.Attempt) { one.waits.Store(false) },
		}))
		one.stop = cancel
		go func() {
			defer close(one.ended)
			one.err = one.Run(ctx)
		}()
		c.rivals = append(c.rivals, one)
	}
	return c
}

// end ends all candidates.
func (c *contest) end() {
	for _, one := range c.rivals {
		one.stop()
		<-one.ended
		_ = one.client.Close()
	}
}

// run returns what was wrong.
func (c *contest) run(t *testing.T) error {
	first, err := c.next()
	if err != nil {
		return err
	}
	if err := c.waiting(2); err != nil {
		return err
	}
	if err := first.Resign(t.Context()); err != nil {
		return err
	}
	second, err := c.nextAtOnce()
	if err != nil {
		return err
	}
	if second.rival == first.rival {
		return fmt.Errorf("%s has resigned and leads again, although others waited", first.driver)
	}
	if err := c.sees(t, first.client, second); err != nil {
		return err
	}

	second.closed.Store(true)
	_ = second.client.Close() // the lock stays until its TTL ends
	third, err := c.next()
	if err != nil {
		return err
	}
	if err := c.sees(t, third.client, third); err != nil {
		return err
	}
	if <-second.ended; second.err == nil {
		return errors.New("Run goes on without its client")
	}
	if err := c.waiting(1); err != nil {
		return err
	}
	third.stop()
	fourth, err := c.nextAtOnce()
	if err != nil {
		return err
	}
	if third.rival == fourth.rival {
		return fmt.Errorf("%s has ended and leads again", third.driver)
	}
	fourth.stop()
	for _, one := range []elected{third, fourth} {
		if <-one.ended; one.err != nil {
			return fmt.Errorf("Run of %s: %w", one.driver, one.err)
		}
	}
	return nil
}

// next returns the next leader.
func (c *contest) next() (elected, error) {
	select {
	case now := <-c.terms:
		if now.term <= c.last.term {
			return now, fmt.Errorf("term %d after %d", now.term, c.last.term)
		}
		c.last = now
		return now, nil
	case <-time.After(hangLimit):
		return elected{}, errors.New("nobody leads")
	}
}

// nextAtOnce returns the next leader after one that has handed on. If the machine stalls, that takes longer, and the
// candidate whose turn it is may miss it.
func (c *contest) nextAtOnce() (elected, error) {
	start := time.Now()
	now, err := c.next()
	if took := time.Since(start); err == nil && took > time.Second {
		c.stalled.Store(true)
		err = fmt.Errorf("handed on after %v", took)
	}
	return now, err
}

// waiting returns when n candidates wait.
func (c *contest) waiting(n int) error {
	end := time.After(hangLimit)
	for {
		waiting := 0
		for _, one := range c.rivals {
			if one.waits.Load() {
				waiting++
			}
		}
		if waiting >= n {
			return nil
		}
		select {
		case <-c.changes:
		case <-end:
			return fmt.Errorf("%d of %d wait", waiting, n)
		}
	}
}

// sees checks that an observer learns of the leader.
func (c *contest) sees(t *testing.T, l locker.Locker, want elected) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	for leader, err := range election.Observe(ctx, l, c.key) {
		if err == nil && leader.Term == want.term {
			if leader.Identity != want.driver {
				return fmt.Errorf("term %d is led by %s", want.term, leader.Identity)
			}
			return nil
		}
	}
	return fmt.Errorf("an observer does not see term %d", want.term)
}
