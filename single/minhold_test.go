package single_test

import (
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/single"
)

// Unlock before MinHold is over leaves the key taken, by nobody, for the rest; the process may be gone by then. Who
// waits gets the lock when that is over.
func TestMinHold(t *testing.T) {
	t.Parallel()
	const hold = 800 * time.Millisecond
	for what, lease := range map[string]time.Duration{"TTL longer": ttl, "TTL shorter": hold / 4} {
		t.Run(what, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
				s := redistest.Start(t)
				for tries := 1; !minHold(t, s, build, lease, hold); tries++ {
					if tries == 20 {
						t.Fatal("the lease is lost each time")
					}
					s.Cmd(t, "FLUSHALL")
				}
			})
		})
	}
}

// minHold reports false if, on a machine that stalls, the lock was not granted within its TTL or the lease ended before
// another client waited for it.
func minHold(t *testing.T, s *redistest.Server, build func(t testing.TB, addr string) drivers.Driver,
	lease, hold time.Duration,
) bool {
	c := single.New(build(t, s.Addr()))
	defer c.Close()
	other := single.New(build(t, s.Addr()))
	defer other.Close()
	start := time.Now()
	l, err := c.Lock(t.Context(), "k", locker.TTL(lease), locker.MinHold(hold))
	if errors.Is(err, locker.ErrUnavailable) { // no answer within the TTL
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	token := l.Token()
	waits := make(chan struct{})
	type result struct {
		lease locker.Lease
		err   error
	}
	next := make(chan result, 1)
	go func() {
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { close(waits) }})
		l, err := other.Lock(ctx, "k")
		next <- result{l, err}
	}()
	select {
	case <-waits:
	case <-l.Done():
		return false
	}
	if err := l.Unlock(t.Context()); errors.Is(err, locker.ErrLost) {
		return false
	} else if err != nil {
		t.Fatal(err)
	}
	_ = c.Close() // the process is gone
	left, _ := pttl(t, s)
	owner := s.Cmd(t, "GET", "lock:k")
	if time.Since(start) < hold { // else it may be somebody else's by now
		if left <= 0 || left > hold {
			t.Errorf("the key has %v left", left)
		}
		if owner == token {
			t.Error("the key is still the owner's, who could extend or release it")
		}
	}
	got := <-next
	if got.err != nil {
		t.Fatal(got.err)
	}
	if d := time.Since(start); d < hold-2*time.Millisecond { // the server counts whole milliseconds
		t.Errorf("somebody else got the lock after %v", d)
	}
	steady.Unlock(t, got.lease)
	return true
}
