package single_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

// A server hangs, and a caller that nothing can call away waits for it inside the driver. Close waits for that caller,
// and an Unlock that comes meanwhile waits for neither.
func TestUnlockKeepsToItsBoundWhileCloseWaits(t *testing.T) {
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		c := single.New(build(t, s.Addr()))
		l := mustTry(t, c, locker.TTL(time.Minute))
		for range 3 { // connections, so that nobody waits for one to be made
			l, err := c.Lock(context.Background(), "warm")
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Unlock(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		s.Pause()
		defer s.Resume()
		hangs, closed := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := c.Lock(context.Background(), "hangs")
			hangs <- err
		}()
		go func() { closed <- c.Close() }()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for told := 0; told < 3; { // the first may have come before Close waited
			if err := l.Unlock(ended); errors.Is(err, locker.ErrClosed) {
				told++
			} else if !errors.Is(err, locker.ErrUnavailable) {
				t.Errorf("Unlock: %v", err)
			}
			select {
			case err := <-hangs:
				if !errors.Is(err, locker.ErrClosed) { // else it did not wait inside the driver
					t.Fatalf("Unlock returned no sooner than the caller inside the driver, with %v", err)
				}
			default:
			}
		}
		s.Resume()
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}
