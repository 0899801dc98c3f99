package everystore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/storeurl"
	"github.com/golocker/locker/lockertrace"
)

// Whether the Client is closed or a hook panics while LockAll waits for its last lock: the others do not stay taken.
func TestLockAllThatEndsWhileItWaits(t *testing.T) {
	const ttl = time.Minute
	keys := []string{"a", "b", "z"}
	for name, start := range storeurl.Start(migrate) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start(t)
			open := func() closer {
				l, err := config.Open(t.Context(), url)
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			other := open()
			defer other.Close()
			for _, panics := range []bool{false, true} {
				l := open()
				held, err := other.TryLock(t.Context(), "z", locker.TTL(ttl))
				if err != nil {
					t.Fatal(err)
				}
				waits := make(chan struct{})
				ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Waiting: func(lockertrace.Waiting) {
					close(waits)
					if panics {
						panic("hook")
					}
				}})
				ended := make(chan error, 1)
				go func() {
					defer func() {
						if p := recover(); p != nil {
							ended <- nil
						}
					}()
					_, err := locker.LockAll(ctx, l, keys, locker.TTL(ttl))
					ended <- err
				}()
				<-waits
				if panics {
					if err := <-ended; err != nil {
						t.Errorf("a panic became %v", err)
					}
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				if !panics {
					if err := <-ended; !errors.Is(err, locker.ErrClosed) {
						t.Errorf("LockAll returned %v", err)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), ttl/2)
				for _, key := range keys[:2] {
					lease, err := other.Lock(ctx, key)
					if err != nil {
						t.Fatalf("panics: %v; %s: %v", panics, key, err)
					}
					_ = lease.Unlock(ctx)
				}
				cancel()
				_ = held.Unlock(t.Context())
			}
		})
	}
}
