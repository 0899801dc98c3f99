package single_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

// Of a Client that has thousands of leases on a master that hangs, those on the other masters are renewed in time.
func TestManyLeasesBesideAMasterThatHangs(t *testing.T) {
	onCluster(t, func(t *testing.T, c *redistest.Cluster, build clientBuilder) {
		const hung, healthy = 4000, 100
		l, bad, good := build(), c.Masters[0], c.Masters[1]
		begun := time.Now()
		hold(t, l, keysOn(t, c, bad, hung), 12*time.Second)
		leases := hold(t, l, keysOn(t, c, good, healthy), 6*time.Second)
		bad.Pause()
		defer func() {
			bad.Resume()
			c.Await(t)
		}()
		all := locker.NewAllLease(leases...)
		select {
		case <-all.Done():
			t.Errorf("a lease on a master that is in order: %v", all.Err())
		case <-time.After(time.Until(begun.Add(12 * time.Second))): // when those on the other master have ended
		}
	}, "--cluster-require-full-coverage", "no") // otherwise all masters refuse after cluster-node-timeout
}

// keysOn returns n keys of locks that are on s, in many slots.
func keysOn(t *testing.T, c *redistest.Cluster, s *redistest.Server, n int) (keys []string) {
	t.Helper()
	const slots = 50
	for len(keys) < n {
		tag := "{" + backend.NewToken() + "}"
		if c.Owner(t, c.Slot(t, single.DefaultPrefix+tag)) != s {
			continue
		}
		for i := range (n + slots - 1) / slots {
			keys = append(keys, fmt.Sprint(tag, i))
		}
	}
	return keys[:n]
}

// hold acquires the locks of keys.
func hold(t *testing.T, l locker.Locker, keys []string, ttl time.Duration) []locker.Lease {
	t.Helper()
	leases := make([]locker.Lease, len(keys))
	var wg sync.WaitGroup
	const callers = 32
	for first := range callers {
		wg.Go(func() {
			for i := first; i < len(keys); i += callers {
				var err error
				if leases[i], err = l.Lock(t.Context(), keys[i], locker.TTL(ttl)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return leases
}
