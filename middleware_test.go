package locker_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/memory"
)

// noting is a middleware that records its name when it is called.
func noting(name string, log *[]string) locker.Middleware {
	return func(next locker.Locker) locker.Locker { return &note{next, name, log} }
}

type note struct {
	locker.Locker
	name string
	log  *[]string
}

func (n *note) Unwrap() locker.Locker { return n.Locker }

func (n *note) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	*n.log = append(*n.log, n.name)
	return n.Locker.TryLock(ctx, key, opts...)
}

func ExampleWrap() {
	var log []string
	l := locker.Wrap(memory.New(), noting("outer", &log), noting("inner", &log))
	lease, _ := l.TryLock(context.Background(), "k")
	defer lease.Unlock(context.Background())
	fmt.Println(log)
	// Output: [outer inner]
}

func TestAsSeesThroughMiddleware(t *testing.T) {
	var log []string
	c := memory.New()
	l := locker.Wrap(c, locker.Defaults(), noting("a", &log), noting("b", &log))
	if closer, ok := locker.As[io.Closer](l); !ok || closer != io.Closer(c) {
		t.Error("the Client's Close is hidden")
	}
	if n, ok := locker.As[*note](l); !ok || n.name != "a" {
		t.Error("not the outermost was found")
	}
	if _, ok := locker.As[fmt.Formatter](l); ok {
		t.Error("found what nobody implements")
	}
	if _, ok := locker.As[io.Closer](nil); ok {
		t.Error("found something in nil")
	}
	_ = c.Close()
}

func TestDefaultsComeBeforeTheCallsOptions(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		opts := []locker.Option{locker.TTL(time.Minute), locker.NoRenewal()}
		l := locker.Wrap(c, locker.Defaults(opts...))
		validFor := func(opts ...locker.Option) time.Duration {
			lease := mustLock(t, l, "k", opts...)
			defer lease.Unlock(t.Context())
			return time.Until(lease.Until()).Round(10 * time.Second)
		}
		if d := validFor(); d != time.Minute {
			t.Errorf("without options: %v", d)
		}
		if d := validFor(locker.TTL(time.Hour)); d != time.Hour-40*time.Second { // less 1 %
			t.Errorf("with an option of its own: %v", d)
		}
	})
}

func TestDefaultsKeepTheirOptionsToThemselves(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		opts := make([]locker.Option, 5, 8) // room to append in place, and in a copy that is rounded up
		for i := range opts {
			opts[i] = locker.TTL(time.Minute)
		}
		appending := func(next locker.Locker) locker.Locker { return &appender{next} }
		l := locker.Wrap(c, locker.Defaults(opts...), appending)
		opts[0] = locker.TTL(-1)
		var wg sync.WaitGroup
		for i := range 2 { // the race detector sees two that append in place
			wg.Go(func() {
				if _, err := l.TryLock(t.Context(), fmt.Sprint(i)); err != nil {
					t.Errorf("the caller's slice is used: %v", err)
				}
			})
		}
		wg.Wait()
		if opts[:6][5] != nil {
			t.Error("a middleware has appended to the caller's slice")
		}
	})
}

// appender is a middleware that appends an option to the options of the call, without copying them.
type appender struct{ locker.Locker }

func (a *appender) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return a.Locker.TryLock(ctx, key, append(opts, locker.NoRenewal())...)
}
