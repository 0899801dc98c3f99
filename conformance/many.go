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
	"github.com/golocker/locker/backend"
)

// manyProperties are those of locker.LockAll and locker.TryLockAll.
var manyProperties = []property[Harness]{
	{
		"ManyAcquireAll",
		"LockAll and TryLockAll acquire the lock of each key once, in whatever order and however often it is named; " +
			"the lease is valid for its TTL, Extend prolongs it, and Unlock frees all locks.",
		"A program works on all of what it has named: a lock that it does not have, or does not give back, protects " +
			"nothing or blocks everybody.",
		manyAcquireAll,
	},
	{
		"ManyAcquireNothing",
		"If one of the locks is held, TryLockAll fails with ErrHeld, and LockAll waits until its context ends and then " +
			"fails with that error, too; the error names the key that is held, and none of the others stays taken.",
		"A caller that was told that it has nothing releases nothing: what it has nevertheless blocks everybody for a " +
			"whole TTL.",
		manyAcquireNothing,
	},
	{
		"ManyCancelledLeaveNothing",
		"LockAll and TryLockAll leave no lock behind, at whatever moment their context ends.",
		"Locks that are acquired for a caller who has gone away block everybody for a whole TTL, and there are several.",
		manyCancelledLeaveNothing,
	},
	{
		"ManyFencesGrow",
		"Each lock that was acquired with others has a fencing token that is greater than all earlier tokens of its " +
			"key, and smaller than all later ones, however those were acquired, and with CommonTokens than " +
			"those of the other keys; without Tokens it is 0.",
		"Each protected resource compares the token of its own lock, whoever comes before and after.",
		manyFencesGrow,
	},
	{
		"ManyLossEnds",
		"If one of the locks is lost, the lease ends with ErrLost within one TTL, and names that lock; the others stay " +
			"taken until Unlock, which reports the loss and frees them.",
		"The code that the locks protect relies on all of them, and may still be running.",
		manyLossEnds,
	},
	{
		"ManyExclude",
		"Locks that are acquired together and one at a time exclude each other, whoever holds which of them, and no " +
			"calls wait for each other in a circle.",
		"Programs that need several locks at once share them with programs that need one, and with each other.",
		manyExclude,
	},
	{
		"ManyInOneStep",
		"If Many is stated, several free locks of one hash slot are acquired in one step, and a step that finds one " +
			"of them held has never taken the others.",
		"A caller that takes the locks one after the other needs a round trip for each, and is in the way of others " +
			"although it acquires nothing.",
		manyInOneStep,
	},
	{
		"SomeInOneStep",
		"TryLockMany acquires as many of several free locks of one hash slot as it is asked for; if Some is not stated, it " +
			"may fail with errors.ErrUnsupported instead.",
		"Semaphores ask for each lock by itself only if that error tells them to.",
		someInOneStep,
	},
}

// manyBackendProperties are those of a backend that implements backend.ManyAcquirer.
var manyBackendProperties = []property[Harness]{
	{
		"ManyGrantEach",
		"AcquireMany grants each lock to the token of its request: nobody else is granted it within its TTL, counted " +
			"from the call, and its owner can extend and release it without touching the others.",
		"The Client renews and releases each of the locks by itself, and counts the TTL of each from before the request.",
		manyGrantEach,
	},
	{
		"ManyTwiceAreGrantedTwice",
		"AcquireMany is idempotent for its own tokens: if it is executed twice, it is granted twice and released by one " +
			"Release of each lock.",
		"Client libraries and proxies repeat requests that were not answered: without idempotence the owner would be " +
			"told that somebody else has its locks.",
		manyTwiceAreGrantedTwice,
	},
	{
		"ManyTouchNothing",
		"AcquireMany that finds a lock held grants none of the locks, and changes nothing about the lock that is held.",
		"An attempt that fails must not keep the lock of a holder that has crashed, nor any other.",
		manyTouchNothing,
	},
	{
		"ManyOvertakeNobody",
		"AcquireMany is not granted a lock that callers wait for in the queue, unless Look is stated.",
		"Callers that need several locks would be served before those that have waited for one.",
		manyOvertakeNobody,
	},
}

// oneSlot returns keys that share a hash slot, so that a Redis Cluster can acquire their locks in one step, too. They
// are those of places of one key, because a store may have these together, and others not.
func oneSlot() []string { return []string{"{many}#0", "{many}#1", "{many}#2"} }

// lockAll acquires keys, which must be free.
func lockAll(t testing.TB, l locker.Locker, keys []string, opts ...locker.Option) *locker.AllLease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
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
			ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
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
		cancelledCall(t, "LockAll or TryLockAll", moment, func(ctx context.Context) (locker.Lease, error) {
			return call(ctx, ls[i%2], keys, locker.TTL(longTTL))
		})
	}
	wantAllFree(t, ls[0], keys...)
}

func manyFencesGrow(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	keys := oneSlot()
	store := can(ls[0])
	tokens, newest := map[string]*growing{}, uint64(0)
	for _, key := range keys {
		tokens[key] = &growing{unfenced: !store.Tokens}
	}
	next := func(what string, fences map[string]uint64) {
		t.Helper()
		last := newest
		for key, fence := range fences {
			tokens[key].next(t, what, fence)
			if store.CommonTokens && fence <= last {
				t.Errorf("%s: expected a token greater than %d, which another key with the same tag had before, seen %d", what,
					last, fence)
			}
			newest = max(newest, fence)
		}
	}
	for i := range 8 {
		lease, fences := lockAll(t, ls[i%2], keys[:2+i%2], locker.TTL(longTTL)), map[string]uint64{}
		for _, key := range lease.Keys() {
			fences[key] = lease.FenceOf(key)
		}
		next("a lock that was acquired with others", fences)
		unlock(t, lease)
		for _, key := range keys[i%3:] {
			one, _ := acquireWhenFree(t, ls[1-i%2], key)
			next("a lock that was acquired by itself", map[string]uint64{key: one.Fence()})
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
	keys := []string{"{lost}a", "{lost}b", "{lost}c"}
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
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
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
	ls, _ := clients(t, h, 3)
	need(t, can(ls[0]).Many, "Many")
	keys := oneSlot()
	step := func() error {
		leases, err := locker.TryLockMany(t.Context(), ls[0], locker.Many{Keys: keys}, locker.TTL(longTTL))
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

// stepper is a Backend that can acquire several locks in one step.
type stepper interface {
	backend.Backend
	backend.ManyAcquirer
}

// steppers makes n Backends for a fresh store, and skips the property unless they implement ManyAcquirer.
func steppers(t testing.TB, h Harness, n int) ([]stepper, Store) {
	t.Helper()
	bs, s := backends(t, h, n)
	steppers := make([]stepper, n)
	for i, b := range bs {
		var ok bool
		if steppers[i], ok = b.(stepper); !ok {
			t.Skip("the Backend does not implement backend.ManyAcquirer: LockAll acquires one lock after the other")
		}
	}
	return steppers, s
}

// stepMethods returns AcquireMany of b as methods, of all locks and of some, as far as b can.
func stepMethods(b backend.Backend) (ms []method) {
	if s, ok := b.(stepper); ok {
		ms = append(ms, method{"AcquireMany", func(ctx context.Context) error {
			_, err := acquireMany(ctx, s, requests(oneSlot(), longTTL))
			return err
		}})
	}
	if s, ok := b.(stepper); ok && backend.Of(b).Some {
		ms = append(ms, method{"AcquireMany of some", func(ctx context.Context) error {
			_, _, err := acquireSome(ctx, s, requests(places(), longTTL), 1, gate)
			return err
		}})
	}
	return ms
}

// requests makes the requests for a step as a Client does.
func requests(keys []string, ttl time.Duration) (reqs []backend.Request) {
	for _, key := range keys {
		reqs = append(reqs, request(key, ttl))
	}
	return reqs
}

// acquireMany makes one attempt to acquire all of reqs.
func acquireMany(ctx context.Context, b stepper, reqs []backend.Request) (all []*holding, err error) {
	sent := time.Now()
	grants, err := b.AcquireMany(ctx, reqs, backend.Choice{})
	for i, g := range grants {
		all = append(all, held(b, reqs[i], sent, *g))
	}
	return all, err
}

// grabMany is acquireMany of locks that are free.
func grabMany(t testing.TB, b stepper, reqs []backend.Request) []*holding {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	var all []*holding
	err := within(t, "AcquireMany of free locks", hangLimit, func() (err error) {
		all, err = acquireMany(ctx, b, reqs)
		return err
	})
	if err != nil || len(all) != len(reqs) {
		t.Fatalf("AcquireMany of %d free locks of one hash slot: expected that many grants, seen %d, %v", len(reqs),
			len(all), err)
	}
	return all
}

func manyGrantEach(t testing.TB, h Harness) {
	bs, _ := steppers(t, h, 2)
	keys, ttl := oneSlot(), h.ttl(2*h.short())
	all := grabMany(t, bs[0], requests(keys, ttl))
	middle, last := all[1], all[2]
	middle.must(t)
	grab(t, bs[1], keys[1], longTTL).must(t)
	if err := last.extend(t.Context(), longTTL); err != nil && last.sure(ttl) {
		t.Errorf("Extend of one of several locks: expected no error, seen %v", err)
	}
	next, at := grabWhenFree(t, bs[1], keys[0], longTTL, ttl+hangLimit)
	if early := all[0].sent.Add(ttl).Sub(at); early > h.drift(ttl) {
		t.Errorf("expected nobody to be granted the lock for %v from AcquireMany, seen it granted %v earlier", ttl, early)
	}
	next.must(t)
	last.must(t)
	settled(t, bs[1], keys...)
}

func manyTwiceAreGrantedTwice(t testing.TB, h Harness) {
	bs, _ := steppers(t, h, 2)
	keys := oneSlot()
	reqs := requests(keys, longTTL)
	first := grabMany(t, bs[0], reqs)
	second, err := acquireMany(t.Context(), bs[0], reqs)
	if err != nil || len(second) != len(reqs) {
		t.Errorf("the same AcquireMany again: expected %d grants, seen %d, %v", len(reqs), len(second), err)
		second = first
	}
	for i, o := range second {
		if o.req.Fence < first[i].req.Fence {
			t.Errorf("the same AcquireMany again: expected token %d again, seen a smaller one, %d", first[i].req.Fence,
				o.req.Fence)
		}
		o.must(t)
	}
	for i, key := range keys {
		next := grab(t, bs[1], key, longTTL)
		if last := max(first[i].req.Fence, second[i].req.Fence); next.req.Fence <= last && backend.Of(bs[0]).Tokens {
			t.Errorf("a grant after one that was sent twice: expected a token greater than %d, seen %d", last,
				next.req.Fence)
		}
		next.must(t)
	}
}

func manyTouchNothing(t testing.TB, h Harness) {
	bs, _ := steppers(t, h, 2)
	keys, ttl := oneSlot(), h.ttl(2*h.short())
	for i, key := range keys {
		holder := grab(t, bs[0], key, ttl)
		all, err := acquireMany(t.Context(), bs[1], requests(keys, longTTL))
		for _, o := range all { // seen below
			o.must(t)
		}
		if holder.sure(ttl) && !errors.Is(err, errors.ErrUnsupported) {
			wantKind(t, "AcquireMany of locks of which one is held", err, locker.ErrHeld)
		}
		for _, other := range slices.Delete(slices.Clone(keys), i, i+1) {
			grab(t, bs[0], other, longTTL).must(t)
		}
		next, at := grabWhenFree(t, bs[1], key, longTTL, ttl+hangLimit)
		late := at.Sub(holder.sent.Add(ttl))
		if late > h.late() {
			t.Errorf("expected a lock that AcquireMany found held to be free after its TTL of %v, seen it free %v later",
				ttl, late)
		}
		if late < -h.drift(ttl) {
			t.Errorf("expected a lock that AcquireMany found held to last for its TTL of %v, seen it free %v earlier", ttl,
				-late)
		}
		next.must(t)
	}
}

func manyOvertakeNobody(t testing.TB, h Harness) {
	bs, _ := steppers(t, h, 3)
	if _, ok := bs[0].(backend.Queuer); !ok {
		t.Skip("the Backend does not implement backend.Queuer: its Client polls or is notified")
	}
	if backend.Of(bs[0]).Look > 0 {
		t.Skip("the Backend states Look: nobody knows who waits")
	}
	keys := oneSlot()
	for _, key := range keys {
		holder := grab(t, bs[0], key, longTTL)
		ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
		defer cancel()
		q := queue(ctx, bs[1], key, longTTL)
		q.waits(t)
		holder.must(t)
		if all, err := acquireMany(t.Context(), bs[2], requests(keys, longTTL)); err == nil {
			t.Errorf("AcquireMany of locks of which somebody waits for one: expected an error, seen %d grants", len(all))
			for _, o := range all {
				o.must(t)
			}
		}
		await(t, "Queue to be granted the lock", q.done, hangLimit)
		if q.err != nil {
			t.Fatalf("Queue of a lock that was released: expected a grant, seen %v", q.err)
		}
		q.o.must(t)
	}
}
