package natslock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/natstest"
	"github.com/golocker/locker/lockertrace"
)

// Calls return when their contexts end, also while the client library connects to a server that is stopped. It holds
// its mutex for two seconds then, again and again. The best of some tries counts.
func TestCallsHeedTheirContextsBesideAServerThatIsStopped(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	opened, err := config.Open(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	inspector, _ := locker.As[inspect.Inspector](opened)
	lease, err := opened.TryLock(t.Context(), "held", locker.TTL(time.Hour), locker.NoRenewal())
	if err != nil {
		t.Fatal(err)
	}
	const tries = 5
	leaves, left := make([]context.CancelFunc, tries), make([]chan struct{}, tries)
	for i := range tries {
		waits := make(chan struct{}, 1)
		ctx, leave := context.WithCancel(lockertrace.With(t.Context(), &lockertrace.Trace{
			Waiting: func(lockertrace.Waiting) {
				select {
				case waits <- struct{}{}:
				default:
				}
			},
		}))
		leaves[i], left[i] = leave, make(chan struct{})
		key := fmt.Sprint("waited for ", i)
		if _, err := opened.TryLock(t.Context(), key, locker.TTL(time.Hour), locker.NoRenewal()); err != nil {
			t.Fatal(err)
		}
		go func() {
			defer close(left[i])
			_, _ = opened.Lock(ctx, key, locker.Patience(time.Hour))
		}()
		<-waits
	}
	s.Pause()
	defer s.Resume()
	const timeout = 200 * time.Millisecond
	call := func(f func(ctx context.Context) error) (late time.Duration, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		start := time.Now()
		err = f(ctx)
		return time.Since(start) - timeout, err
	}
	try := func(ctx context.Context) error {
		_, err := opened.TryLock(ctx, "another")
		return err
	}
	for {
		_, err := call(try)
		if err == nil {
			t.Fatal("a server that is stopped has granted a lock")
		}
		if strings.Contains(err.Error(), "not connected") {
			break
		}
	}
	best := make(map[string]time.Duration)
	for i := range tries {
		for name, f := range map[string]func(ctx context.Context) error{
			"TryLock": try,
			"Lock":    func(ctx context.Context) error { _, err := opened.Lock(ctx, "another"); return err },
			"Extend":  func(ctx context.Context) error { return lease.Extend(ctx) },
			"Verify":  func(ctx context.Context) error { return locker.Verify(ctx, lease) },
			"Inspect": func(ctx context.Context) error { _, err := inspector.Inspect(ctx, "held"); return err },
			"TryLockAll": func(ctx context.Context) error {
				_, err := locker.TryLockAll(ctx, opened, []string{"a", "b"})
				return err
			},
			"a Lock that waits": func(ctx context.Context) error {
				<-ctx.Done()
				leaves[i]()
				<-left[i]
				return ctx.Err()
			},
		} {
			late, err := call(f)
			if err == nil {
				t.Errorf("%s of a server that is stopped: got no error", name)
			}
			if b, ok := best[name]; !ok || late < b {
				best[name] = late
			}
		}
	}
	for name, late := range best {
		if late > time.Second {
			t.Errorf("%s has returned %v after the end of its context, at best", name, late)
		}
	}
	t.Log(best)
}
