package single_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/single"
)

// A server that died is no holder. A waiter looks every two seconds or so.
func TestADeadServerIsNotAHolder(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		holder, w := single.New(build(t, s.Addr())), single.New(build(t, s.Addr()))
		mustTry(t, holder, locker.TTL(5*time.Minute), locker.NoRenewal())
		waits := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		ctx = lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { close(waits) }})
		got := make(chan error, 1)
		go func() {
			_, err := w.Lock(ctx, "k", locker.Patience(time.Hour))
			got <- err
		}()
		<-waits
		s.Kill()
		err := <-got
		cancel()
		if !errors.Is(err, locker.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, locker.ErrHeld) {
			t.Errorf("%v, want an error that matches ErrUnavailable and the context's, and not ErrHeld", err)
		}
		for _, c := range []*locker.Client{holder, w} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
