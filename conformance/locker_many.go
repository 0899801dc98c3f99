package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// oneSlot returns keys that share a hash slot, so that a Redis Cluster can acquire their locks in one step, too.
func oneSlot() []string { return []string{"{many}a", "{many}b", "{many}c"} }

// lockAll acquires keys, which must be free.
func lockAll(t testing.TB, l locker.Locker, keys []string, opts ...locker.Option) *locker.AllLease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	start := time.Now()
	lease, err := locker.TryLockAll(ctx, l, keys, opts...)
	prompt(t, start)
	if err != nil {
		t.Fatalf("TryLockAll of free locks: expected a lease, seen %v", err)
	}
	return lease
}

// wantAllFree checks that each of keys is free, or is soon: some stores clean up after they have answered.
func wantAllFree(t testing.TB, l locker.Locker, keys ...string) {
	t.Helper()
	for _, key := range keys {
		lease, _ := acquireWhenFree(t, l, key)
		unlock(t, lease)
	}
}

func manyAcquireAll(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	for _, keys := range [][]string{oneSlot(), {"a", "b", "c"}} {
		named := []string{keys[2], keys[0], keys[1], keys[0]}
		for what, call := range map[string]func(
			context.Context, locker.Locker, []string, ...locker.Option,
		) (*locker.AllLease, error){"LockAll": locker.LockAll, "TryLockAll": locker.TryLockAll} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			start := time.Now()
			lease, err := call(ctx, ls[0], named, locker.TTL(longTTL))
			cancel()
			if err != nil {
				t.Fatalf("%s of free locks: expected a lease, seen %v", what, err)
			}
			if !slices.Equal(lease.Keys(), keys) {
				t.Errorf("%s of %q: expected the locks of %q, seen %q", what, named, keys, lease.Keys())
			}
			if valid := lease.Until().Sub(start); valid <= longTTL/2 || valid >= longTTL {
				t.Errorf("%s: expected a lease for a little less than the TTL of %v, seen %v", what, longTTL, valid)
			}
			if err := lease.Extend(t.Context()); err != nil {
				t.Errorf("Extend of several locks: expected no error, seen %q", err)
			}
			for i, key := range keys {
				wantHeld(t, ls[i%2], key)
			}
			if lease.Err() != nil || isDone(lease) {
				t.Errorf("%s: expected an open lease, seen Err %v, Done closed %v", what, lease.Err(), isDone(lease))
			}
			unlock(t, lease)
			wantAllFree(t, ls[1], keys...)
		}
	}
}

func manyAcquireNothing(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	tryLock := func(keys []string) error {
		_, err := locker.TryLockAll(t.Context(), ls[1], keys, locker.TTL(longTTL))
		wantError(t, "TryLockAll of locks of which one is held", err, locker.ErrHeld)
		return err
	}
	wait := func(keys []string) error {
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		w := waitIn(ctx, func(ctx context.Context) (locker.Lease, error) {
			return locker.LockAll(ctx, ls[1], keys, locker.TTL(longTTL))
		})
		w.settle(h.short()) // if the Locker does not say that it waits, the store has had time to answer then
		cancel()
		await(t, "LockAll to return at the end of its context", w.done, slack)
		if errors.Is(w.err, locker.ErrUnavailable) {
			prompt(t, start) // the store has not answered, as one that stalls
		}
		wantError(t, "LockAll of locks of which one is held", w.err, locker.ErrHeld, context.Canceled)
		return w.err
	}
	for i := range oneSlot() {
		for what, call := range map[string]func(keys []string) error{"TryLockAll": tryLock, "LockAll": wait} {
			// Each call has keys of its own: on several nodes, a lock may be held for a moment after its release.
			keys := oneSlot()
			for k := range keys {
				keys[k] += fmt.Sprint(what, i)
			}
			key, others := keys[i], slices.Delete(slices.Clone(keys), i, i+1)
			holder := lock(t, ls[0], key, locker.TTL(longTTL))
			if err := call(keys); keyOf(err) != key {
				t.Errorf("%s: expected an error about the lock %q, seen %v", what, key, err)
			}
			wantAllFree(t, ls[0], others...)
			unlock(t, holder)
			wantAllFree(t, ls[0], key)
		}
	}
}

// keyOf returns the key that a locker.Error names.
func keyOf(err error) string {
	if e := (*locker.Error)(nil); errors.As(err, &e) {
		return e.Key
	}
	return ""
}

func manyCancelledLeaveNothing(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	keys := oneSlot()
	for i, moment := range moments(80) {
		call := locker.LockAll
		if i%4 > 1 {
			call = locker.TryLockAll
		}
		ctx, cancel := endingAfter(t, moment)
		var lease *locker.AllLease
		err := within(t, "LockAll or TryLockAll with a context that ends", moment, func() (err error) {
			lease, err = call(ctx, ls[i%2], keys, locker.TTL(longTTL))
			return err
		})
		cancel()
		if err == nil {
			unlock(t, lease)
		} else if !errors.Is(err, context.Canceled) && !errors.Is(err, locker.ErrHeld) {
			t.Errorf("LockAll or TryLockAll with a context that is cancelled: expected a lease or context.Canceled, "+
				"seen %v", err)
		}
	}
	wantAllFree(t, ls[0], keys...)
}

func manyFencesGrow(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	keys := oneSlot()
	tokens := map[string]*growing{}
	for _, key := range keys {
		tokens[key] = &growing{unfenced: h.Unfenced}
	}
	for i := range 8 {
		lease := lockAll(t, ls[i%2], keys[:2+i%2], locker.TTL(longTTL))
		for _, key := range lease.Keys() {
			tokens[key].next(t, "a lock that was acquired with others", lease.FenceOf(key))
		}
		unlock(t, lease)
		for _, key := range keys[i%3:] {
			one, _ := acquireWhenFree(t, ls[1-i%2], key)
			tokens[key].next(t, "a lock that was acquired by itself", one.Fence())
			unlock(t, one)
		}
	}
}

func manyLossEnds(t testing.TB, h Harness) {
	ls, s := clients(t, h, 2)
	if s.Delete == nil {
		t.Skip("the harness has no Delete")
	}
	limit := h.short()
	if h.Bubble == nil {
		limit += slack
	}
	keys := oneSlot()
	lease := lockAll(t, ls[0], keys, locker.TTL(h.short()))
	defer func() { _ = lease.Unlock(t.Context()) }() // ends its goroutines if the check fails
	s.Delete(keys[1])
	await(t, "the loss of one of several locks to be noticed", lease.Done(), limit)
	err := lease.Err()
	if !errors.Is(err, locker.ErrLost) || keyOf(err) != keys[1] {
		t.Errorf("Err: expected an error about %q that matches ErrLost, seen %v", keys[1], err)
	}
	for _, key := range []string{keys[0], keys[2]} {
		wantHeld(t, ls[1], key)
	}
	wantError(t, "Unlock of several locks of which one is lost", lease.Unlock(t.Context()), locker.ErrNotHeld,
		locker.ErrLost)
	wantAllFree(t, ls[1], keys...)
}

func manyExclude(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	keys := oneSlot()
	inside := map[string]*atomic.Int32{}
	for _, key := range keys {
		inside[key] = new(atomic.Int32)
	}
	var wg sync.WaitGroup
	for i := range 9 {
		wants := [][]string{{keys[0], keys[1]}, {keys[2], keys[1], keys[0]}, {keys[i/3]}}[i%3]
		wg.Go(func() {
			for range 6 {
				lease, err := locker.LockAll(ctx, ls[i/3], wants, locker.TTL(longTTL))
				if err != nil {
					t.Errorf("LockAll beside other calls: expected a lease, seen %v", err)
					return
				}
				for _, key := range wants {
					if n := inside[key].Add(1); n != 1 {
						t.Errorf("the lock %q: expected one holder, seen %d at once", key, n)
					}
				}
				time.Sleep(time.Millisecond)
				for _, key := range wants {
					inside[key].Add(-1)
				}
				unlock(t, lease)
			}
		})
	}
	wg.Wait()
}

func manyInOneStep(t testing.TB, h Harness) {
	if !h.Steps {
		t.Skip("the harness does not declare Steps")
	}
	ls, _ := clients(t, h, 3)
	keys := oneSlot()
	step := func() error {
		leases, err := locker.TryLockMany(t.Context(), ls[0], keys, locker.TTL(longTTL))
		for _, lease := range leases {
			unlock(t, lease)
		}
		return err
	}
	if err := step(); err != nil {
		t.Fatalf("TryLockMany of free locks of one hash slot: expected leases, seen %v", err)
	}
	last := len(keys) - 1
	holder := lock(t, ls[1], keys[last], locker.TTL(longTTL))
	over := make(chan struct{})
	defer func() { <-over }()
	go func() {
		defer close(over)
		for range 50 {
			wantError(t, "TryLockMany of locks of which one is held", step(), locker.ErrHeld)
		}
	}()
	for watching := true; watching; {
		select {
		case <-over:
			watching = false
		default:
			unlock(t, lock(t, ls[2], keys[0], locker.TTL(longTTL))) // it is free all the time
			time.Sleep(100 * time.Microsecond)
		}
	}
	unlock(t, holder)
}
