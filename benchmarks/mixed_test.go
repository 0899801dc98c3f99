package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

// TestLibrariesOnTheSameKeys has this library, redsync and redislock lock the same keys, for two seconds, or for
// LOCKER_MIXED=30s. They exclude each other, because the key of a lock is a string that exists while the lock is held.
func TestLibrariesOnTheSameKeys(t *testing.T) {
	lasts := 2 * time.Second
	if v := os.Getenv("LOCKER_MIXED"); v != "" {
		var err error
		if lasts, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	libraries := map[string]opener{"redsync": ofRedsync("goredis", tuned()...), "redislock": ofRedislock(time.Millisecond)}
	for _, c := range clients {
		libraries["locker/"+c] = ours(c)
	}
	server := []*redistest.Server{redistest.Start(t)}
	const keys, callers = 3, 2
	var inside [keys]atomic.Int64
	var last [keys]atomic.Value // the library that has had the lock last
	var changed atomic.Int64
	counts := map[string]*atomic.Int64{}
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var wg sync.WaitGroup
	for name, open := range libraries {
		s, err := open(addrs(server), limits{8, longTimeout})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		counts[name] = &atomic.Int64{}
		for i := range callers * keys {
			k := i % keys
			key := fmt.Sprint("k", k)
			if !strings.HasPrefix(name, "locker/") {
				key = single.DefaultPrefix + key
			}
			ours := strings.HasPrefix(name, "locker/")
			wg.Go(func() {
				for ctx.Err() == nil {
					if ours { // its queue leaves little to libraries that poll
						time.Sleep(rand.N(5 * time.Millisecond))
					}
					held, err := s.Lock(ctx, key)
					if err != nil {
						continue // the time is over, or another library has had the lock for too long
					}
					if n := inside[k].Add(1); n != 1 {
						t.Errorf("%d have %s, %s is one of them", n, key, name)
					}
					if l := last[k].Swap(name); l != nil && l != name {
						changed.Add(1)
					}
					counts[name].Add(1)
					inside[k].Add(-1)
					if err := held.Unlock(context.Background()); err != nil {
						t.Errorf("%s: Unlock: %v", name, err)
					}
				}
			})
		}
	}
	wg.Wait()
	total := int64(0)
	for name, n := range counts {
		total += n.Load()
		t.Logf("%s: %d", name, n.Load())
		if n.Load() == 0 {
			t.Errorf("%s has never had a lock", name)
		}
	}
	t.Logf("%d acquisitions, %d of them from another library", total, changed.Load())
	if changed.Load() == 0 {
		t.Error("no lock went from one library to another")
	}
}
