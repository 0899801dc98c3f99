package everystore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/storeurl"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
)

// drainEnv is how many leases, and how many callers that wait, a Client has that drains.
const drainEnv = "LOCKER_DRAIN"

// Many leases and callers that wait, on each store: all callers are told, no lease is lost, and nothing is left. Half
// of the callers wait behind their own process, the others at the store.
func TestDrainOfMany(t *testing.T) {
	n := 100
	if v := os.Getenv(drainEnv); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	stores := storeurl.Start(migrate)
	for _, d := range deployment.Records {
		stores[d.Name] = func(tb testing.TB) string { return d.Start(tb).URL() }
	}
	for name, start := range stores {
		t.Run(name, func(t *testing.T) {
			url := start(t)
			open := func() *config.Opened {
				l, err := config.Open(t.Context(), url)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close() })
				return l
			}
			drainMany(t, n, open(), open())
		})
	}
}

func drainMany(t *testing.T, many int, c, other *config.Opened) {
	// each calls f for the numbers below n, sixteen at a time: a store on a busy machine answers no thousand at once.
	each := func(n int, f func(i int) error) {
		next := make(chan int, n)
		for i := range n {
			next <- i
		}
		close(next)
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				for i := range next {
					if err := f(i); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
	take := func(l locker.Locker, name string, n int) []locker.Lease {
		leases := make([]locker.Lease, n)
		each(n, func(i int) (err error) {
			// The place of a caller that has left a queue on Redis may keep others out for three seconds.
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			leases[i], err = l.Lock(ctx, fmt.Sprint(name, i), locker.TTL(5*time.Minute))
			return err
		})
		if t.Failed() {
			t.FailNow()
		}
		return leases
	}
	give := func(leases []locker.Lease) {
		each(len(leases), func(i int) error { return leases[i].Unlock(t.Context()) })
	}
	const foreign = 10
	held, theirs := take(c, "held", many), take(other, "theirs", foreign)
	told := make(chan error, many)
	for i := range many {
		key := fmt.Sprint("theirs", i%foreign)
		if i%2 == 0 {
			key = fmt.Sprint("held", i)
		}
		go func() {
			_, err := c.Lock(t.Context(), key)
			told <- err
		}()
	}
	process, _ := locker.As[inspect.Process](c)
	for calls := 0; calls < many; {
		select {
		case err := <-told:
			t.Fatalf("a caller got %v before Drain", err)
		case <-time.After(time.Millisecond):
		}
		calls = 0
		for w := range process.OwnWaits() {
			calls += w.Calls
		}
	}
	at := time.Now()
	ended, end := context.WithCancel(t.Context())
	end()
	if got := c.Drain(ended); len(got) != many {
		t.Errorf("Drain returned %d leases", len(got))
	}
	for range many {
		if err := <-told; !errors.Is(err, locker.ErrDraining) {
			t.Errorf("a caller got %v", err)
		}
	}
	callers := time.Since(at)
	for _, l := range held {
		if err := l.Err(); err != nil {
			t.Errorf("a lease: %v", err)
		}
	}
	at = time.Now()
	given := make(chan struct{})
	go func() {
		give(held)
		close(given)
	}()
	if got := c.Drain(t.Context()); len(got) > 0 {
		t.Errorf("Drain returned %d leases", len(got))
	}
	t.Logf("%d callers were told within %v, and %d locks were free %v after their Unlock", many,
		callers.Round(time.Millisecond), many, time.Since(at).Round(time.Millisecond))
	<-given
	give(theirs)
	give(take(other, "held", many))
	give(take(other, "theirs", foreign))
}
