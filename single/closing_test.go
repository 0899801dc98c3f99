package single_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/single"
)

// A server hangs, and a caller that nothing can call away waits for it inside the driver. Close waits for that caller,
// and an Unlock that comes meanwhile waits for neither.
func TestUnlockKeepsToItsBoundWhileCloseWaits(t *testing.T) {
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		for range 20 {
			if unlockedDuringClose(t, s, single.New(build(t, s.Addr()))) {
				return
			}
		}
		t.Error("no Unlock during Close was told of it")
	})
}

// unlockedDuringClose returns false if an Unlock came before Close had reached the node. That Unlock waited for the
// server, and the caller inside the driver did so for no longer.
func unlockedDuringClose(t *testing.T, s *redistest.Server, c *locker.Client) (during bool) {
	l := mustTry(t, c, locker.TTL(time.Minute))
	for range 3 { // connections, so that nobody waits for one to be made
		l, err := c.Lock(context.Background(), "warm")
		if err != nil {
			t.Fatal(err)
		}
		steady.Unlock(t, l)
	}
	s.Pause()
	defer s.Resume()
	hangs, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := c.Lock(context.Background(), "hangs")
		hangs <- err
	}()
	go func() { closed <- c.Close() }()
	// Close ends the wait of a caller that waits outside the driver.
	if _, err := c.TryLock(t.Context(), "leaves"); !errors.Is(err, locker.ErrClosed) {
		t.Fatalf("TryLock during Close: %v, want ErrClosed", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	during = true
	for range 3 {
		if err := l.Unlock(ended); errors.Is(err, locker.ErrUnavailable) {
			during = false
		} else if !errors.Is(err, locker.ErrClosed) {
			t.Errorf("Unlock: %v", err)
		}
		select {
		case err := <-hangs:
			if during && !errors.Is(err, locker.ErrClosed) { // else it did not wait inside the driver
				t.Fatalf("Unlock returned no sooner than the caller inside the driver, with %v", err)
			}
		default:
		}
	}
	s.Resume()
	if err := <-closed; err != nil && during {
		t.Error(err)
	}
	return during
}
