package locker_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/semaphore"
)

// A Client tells what it holds, and for which keys its calls wait since when, whether they ask the store or come after
// others.
func TestClientTellsWhatItHasAndWaitsFor(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		store := memory.NewBackend()
		c, other := locker.NewClient(store), locker.NewClient(store)
		defer other.Close()
		defer c.Close()
		p, _ := locker.As[inspect.Process](c)
		began := time.Now()
		mine, err := c.Lock(t.Context(), "mine", locker.TTL(time.Minute), locker.Label("me"))
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := other.Lock(t.Context(), "theirs", locker.TTL(time.Minute), locker.Label("they"))
		if err != nil {
			t.Fatal(err)
		}
		permits := semaphore.New(c, 1)
		permit, err := permits.Lock(t.Context(), "permits")
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		wait := func(lock func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error), key string) {
			go func() { _, _ = lock(ctx, key) }()
			synctest.Wait()
			time.Sleep(time.Second)
		}
		wait(c.Lock, "theirs")
		wait(func(ctx context.Context, key string, _ ...locker.Option) (locker.Lease, error) {
			return c.Lock(ctx, key, locker.TTL(time.Minute)) // which the first one cannot hand its lock over to
		}, "theirs")
		wait(c.Lock, "mine")
		wait(func(ctx context.Context, key string, _ ...locker.Option) (locker.Lease, error) {
			return nil, func() error { _, err := permits.Lock(ctx, key); return err }()
		}, "permits")

		waits := func() (all []inspect.OwnWait) {
			return slices.SortedFunc(p.OwnWaits(), func(a, b inspect.OwnWait) int { return a.Since.Compare(b.Since) })
		}
		want := []inspect.OwnWait{
			{Key: "theirs", Calls: 2, Since: began, Holder: "they"},
			{Key: "mine", Calls: 1, Since: began.Add(2 * time.Second), Holder: "me"},
			{Key: "{permits}#permits", Calls: 1, Since: began.Add(3 * time.Second), Holder: waits()[2].Holder},
		}
		if seen := waits(); !slices.Equal(seen, want) {
			t.Errorf("waits: seen %+v, want %+v", seen, want)
		}
		leases := slices.SortedFunc(p.OwnLeases(), func(a, b inspect.OwnLease) int { return -len(a.Label) + len(b.Label) })
		if len(leases) != 2 {
			t.Fatalf("leases: seen %+v, want two", leases)
		}
		l := leases[1]
		if l.Key != "mine" || l.Label != "me" || l.Owner != mine.Token()[:8] || l.Fence != mine.Fence() ||
			!l.Since.Equal(began) || l.Until.After(mine.Until()) || l.Until.Before(mine.Until().Add(-time.Second)) {
			t.Errorf("seen %+v, want the lease of mine, until about %v", l, mine.Until())
		}

		for range p.OwnWaits() { // which holds up no other call
			free, err := c.Lock(t.Context(), "free")
			if err != nil {
				t.Fatal(err)
			}
			_ = free.Unlock(t.Context())
		}

		// The second call comes to the front, and has waited for as long as it has.
		_ = theirs.Unlock(t.Context())
		synctest.Wait()
		if seen := waits(); seen[0].Key != "theirs" || seen[0].Calls != 1 || !seen[0].Since.Equal(began.Add(time.Second)) {
			t.Errorf("when the first call has the lock: seen %+v", seen)
		}
		leave()
		synctest.Wait()
		if seen := waits(); len(seen) > 0 {
			t.Errorf("when nobody waits: seen %+v", seen)
		}
		_ = mine.Unlock(t.Context())
		_ = permit.Unlock(t.Context())
		for l := range p.OwnLeases() {
			if l.Key != "theirs" {
				t.Errorf("when they were released: seen %+v", l)
			}
		}
	})
}
