// Package datetest checks stores over HTTP whose answers tell the time in the header Date.
package datetest

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/aws"
	"github.com/golocker/locker/record"
)

// servers are two whose clocks differ. Each answer is of the other one.
type servers struct {
	mu      sync.Mutex
	ahead   time.Duration // of this machine's clock, the one that is behind
	answers int
	age     string // in each answer
	fails   bool   // each other answer is that a server has failed, and is of a time at which all locks are over
}

func (s *servers) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// client is a Sender to servers.
type client struct {
	aws.Sender
	*servers
}

// Do implements aws.Sender.
func (c client) Do(r *http.Request) (*http.Response, error) {
	answer, err := c.Sender.Do(r)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers++
	now := time.Now().Add(c.ahead + time.Duration(c.answers%2)*differ)
	if c.age != "" {
		answer.Header.Set("Age", c.age)
	}
	if c.fails && c.answers%2 == 1 {
		now = now.Add(over)
		answer.StatusCode = http.StatusInternalServerError
	}
	answer.Header.Set("Date", now.UTC().Format(http.TimeFormat))
	return answer, nil
}

const (
	differ = 4 * time.Second // the clocks of the servers
	skew   = 5 * time.Second
	ttl    = time.Minute
	over   = ttl + ttl/100 + 2*skew + differ + 5*time.Second // when each end is over on all clocks, also of a second write
)

// Run checks that processes that look once take locks by the dates of answers, and only by those that tell the time.
// The times are short because the SDK dates its requests by the answers, and servers refuse dates that are far off.
//
// open returns a Store of the same records whose client sends its requests by what via returns.
func Run(t *testing.T, open func(t testing.TB, via func(aws.Sender) aws.Sender) record.Store) {
	all := new(servers)
	try := func(t testing.TB, opts ...locker.Option) (locker.Lease, error) { // in a new process
		store := open(t, func(s aws.Sender) aws.Sender { return client{s, all} })
		l := record.New(store, record.ClockSkew(skew), record.Timeout(time.Minute))
		t.Cleanup(func() { _ = l.Close() })
		return l.TryLock(t.Context(), t.Name(), append(opts, locker.TTL(ttl), locker.NoRenewal())...)
	}
	taken := func(t testing.TB, opts ...locker.Option) locker.Lease {
		t.Helper()
		lease, err := try(t, opts...)
		if err != nil {
			t.Fatalf("expected the lock, seen %v", err)
		}
		return lease
	}
	refused := func(t testing.TB, after string) {
		t.Helper()
		var held *locker.HeldError
		if _, err := try(t); !errors.As(err, &held) {
			t.Fatalf("%s: expected that the lock is held, seen %v", after, err)
		}
	}
	pass := func(d time.Duration) { all.set(func() { all.ahead += d }) }

	t.Run("Crash", func(t *testing.T) {
		for range 3 { // each finds the lock of the one before, which has crashed
			taken(t)
			refused(t, "at once")
			pass(ttl / 2)
			refused(t, "before the TTL is over")
			pass(over - ttl/2)
		}
	})
	t.Run("MinHold", func(t *testing.T) {
		lease := taken(t, locker.MinHold(ttl))
		if err := lease.Unlock(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		refused(t, "at once")
		pass(ttl / 2)
		refused(t, "before MinHold is over")
		pass(over - ttl/2)
		taken(t)
	})
	t.Run("Cache", func(t *testing.T) {
		taken(t)
		all.set(func() { all.age = "60" })
		pass(over)
		refused(t, "from a cache")
		all.set(func() { all.age = "" })
		taken(t)
	})
	t.Run("Failure", func(t *testing.T) { // the client repeats each request
		taken(t)
		all.set(func() { all.fails, all.answers = true, 0 })
		refused(t, "after an answer of a server that failed")
	})
}
