package conformance

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// someProperties are those of a backend that states backend.Capabilities.Some.
var someProperties = []property[Harness]{
	{
		"SomeFirstFree",
		"AcquireMany acquires as many locks as are wanted, the first ones that are free, and no others; each is granted to " +
			"the token of its request.",
		"The Client renews and releases what it is granted: a lock more would stay taken for a whole TTL, and a lock " +
			"less protects nothing.",
		someFirstFree,
	},
	{
		"SomeOrNothing",
		"AcquireMany that finds fewer locks free than are wanted acquires none of them.",
		"Callers that each have a part of what they want would keep each other from the rest.",
		someOrNothing,
	},
	{
		"SomeGateRefuses",
		"AcquireMany acquires nothing while somebody holds one of the gates, and names it; it does not acquire the gates.",
		"Who holds the gate waits for locks to become free: callers that do not wait would take them away.",
		someGateRefuses,
	},
	{
		"SomeQueueAtTheGateRefuses",
		"AcquireMany acquires nothing while somebody waits in the queue for one of the gates, also if its holder has died, " +
			"unless Look is stated.",
		"The waiter for the gate has waited for longer than a caller that has just come.",
		someQueueAtTheGateRefuses,
	},
	{
		"SomeGateOpensWhenManyAreFree",
		"AcquireMany does not count the gates while spare locks are free beside those that it acquires, and counts them " +
			"while fewer are.",
		"Each caller that waits at the gate needs some round trips: after a burst, newcomers that wait behind it come " +
			"faster than they leave, and wait for ever although locks are free.",
		someGateOpensWhenManyAreFree,
	},
	{
		"SomeOvertakeNobody",
		"AcquireMany is not granted a lock that callers wait for in the queue, also if its holder has died, unless Look is " +
			"stated.",
		"The waiter for that lock has waited for longer than a caller that has just come.",
		someOvertakeNobody,
	},
	{
		"SomeTwiceAreGrantedTwice",
		"AcquireMany is idempotent for its own tokens: if it is executed twice, it is granted the same locks twice and no " +
			"others, also if a gate was taken and a lock has become free in between.",
		"Client libraries and proxies repeat requests that were not answered: the owner would have more locks than it " +
			"knows of, or be told that it has none.",
		someTwiceAreGrantedTwice,
	},
}

// Keys of places and of their gate, which share a hash slot.
func places() []string { return []string{"{some}#0", "{some}#1", "{some}#2", "{some}#3"} }

const gate = "{some}#gate"

// choosers makes n Backends for a fresh store, and skips the property unless they can acquire some of several locks.
func choosers(t testing.TB, h Harness, n int) ([]stepper, Store) {
	t.Helper()
	bs, s := steppers(t, h, n)
	if !backend.Of(bs[0]).Some {
		t.Skip("the Backend does not state Some: semaphores take a round trip more")
	}
	return bs, s
}

// acquireSome makes one attempt to acquire n of reqs. taken are the numbers of those that were acquired.
func acquireSome(
	ctx context.Context, b stepper, reqs []backend.Request, n int, gates ...string,
) (some []*holding, taken []int, err error) {
	return acquireSpare(ctx, b, reqs, n, 0, gates...)
}

// acquireSpare is acquireSome with a number of locks that have to be free for gates not to count.
func acquireSpare(
	ctx context.Context, b stepper, reqs []backend.Request, n, spare int, gates ...string,
) (some []*holding, taken []int, err error) {
	sent := time.Now()
	grants, err := b.AcquireMany(ctx, reqs, backend.Choice{N: n, Gates: gates, Spare: spare})
	for i, g := range grants {
		if g != nil {
			some, taken = append(some, held(b, reqs[i], sent, *g)), append(taken, i)
		}
	}
	return some, taken, err
}

// grabSome is acquireSome of locks of which enough are free.
func grabSome(
	t testing.TB, b stepper, reqs []backend.Request, n int, gates ...string,
) (some []*holding, taken []int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	err := within(t, "AcquireMany of free locks", hangLimit, func() (err error) {
		some, taken, err = acquireSome(ctx, b, reqs, n, gates...)
		return err
	})
	if err != nil || len(some) != n {
		t.Fatalf("AcquireMany of %d of %d locks of one hash slot, of which enough are free: expected that many grants, "+
			"seen %d, %v", n, len(reqs), len(some), err)
	}
	return some, taken
}

// refusedSome checks that AcquireMany acquires nothing.
func refusedSome(t testing.TB, what string, b stepper, reqs []backend.Request, n int, gates ...string) error {
	t.Helper()
	some, taken, err := acquireSome(t.Context(), b, reqs, n, gates...)
	if len(some) > 0 {
		t.Errorf("AcquireMany %s: expected no grant, seen those of the locks %d", what, taken)
	}
	for _, o := range some {
		o.must(t)
	}
	if !errors.Is(err, errors.ErrUnsupported) {
		wantKind(t, "AcquireMany "+what, err, locker.ErrHeld)
	}
	return err
}

func someFirstFree(t testing.TB, h Harness) {
	bs, _ := choosers(t, h, 2)
	keys := places()
	for i, key := range keys[:2] {
		holder := grab(t, bs[1], key, longTTL)
		some, taken := grabSome(t, bs[0], requests(keys, longTTL), 2, gate)
		if want := [][]int{{1, 2}, {0, 2}}[i]; !slices.Equal(taken, want) {
			t.Errorf("AcquireMany of two locks, number %d of which is held: expected the locks %d, seen %d", i, want, taken)
		}
		grab(t, bs[1], keys[3], longTTL).must(t)
		for _, o := range some {
			if _, err := acquire(t.Context(), bs[1], o.req.Key, longTTL); err == nil {
				t.Errorf("expected nobody to be granted a lock of AcquireMany, seen %q granted", o.req.Key)
			}
			if err := o.extend(t.Context(), longTTL); err != nil {
				t.Errorf("Extend of one of several locks: expected no error, seen %v", err)
			}
			o.must(t)
		}
		holder.must(t)
		settled(t, bs[1], keys...)
	}
}

func someOrNothing(t testing.TB, h Harness) {
	bs, _ := choosers(t, h, 2)
	keys := places()[:3]
	for i, key := range keys {
		holder := grab(t, bs[1], key, longTTL)
		err := refusedSome(t, "of three locks of which one is held", bs[0], requests(keys, longTTL), 3, gate)
		if errors.Is(err, locker.ErrHeld) && keyOf(err) != key {
			t.Errorf("AcquireMany of locks of which %q is held: expected an error that names it, seen %v", key, err)
		}
		for _, other := range slices.Delete(slices.Clone(keys), i, i+1) {
			grab(t, bs[1], other, longTTL).must(t)
		}
		holder.must(t)
	}
}

func someGateRefuses(t testing.TB, h Harness) {
	bs, _ := choosers(t, h, 2)
	keys := places()
	holder := grab(t, bs[1], gate, longTTL)
	err := refusedSome(t, "while the gate is held", bs[0], requests(keys, longTTL), 1, gate)
	if errors.Is(err, locker.ErrHeld) && keyOf(err) != gate {
		t.Errorf("AcquireMany while %q is held: expected an error that names it, seen %v", gate, err)
	}
	for _, key := range keys {
		grab(t, bs[1], key, longTTL).must(t)
	}
	some, _ := grabSome(t, bs[0], requests(keys, longTTL), 1)
	some[0].must(t)
	holder.must(t)
	some, _ = grabSome(t, bs[0], requests(keys, longTTL), 1, gate)
	grab(t, bs[1], gate, longTTL).must(t)
	some[0].must(t)
}

func someGateOpensWhenManyAreFree(t testing.TB, h Harness) {
	bs, _ := choosers(t, h, 2)
	keys := places()
	closed := grab(t, bs[1], gate, longTTL)
	some, taken, err := acquireSpare(t.Context(), bs[0], requests(keys, longTTL), 1, 3, gate)
	if err != nil || len(taken) != 1 {
		t.Errorf("AcquireMany while the gate is held, and the spare locks are free: expected one lock, seen %d, %v", taken,
			err)
	}
	again, taken, err := acquireSpare(t.Context(), bs[0], requests(keys, longTTL), 1, 3, gate)
	if len(taken) > 0 {
		t.Errorf("AcquireMany while the gate is held, and one lock is missing: expected no grant, seen %d", taken)
	}
	if !errors.Is(err, errors.ErrUnsupported) {
		wantKind(t, "AcquireMany while the gate is held, and one lock is missing", err, locker.ErrHeld)
		if errors.Is(err, locker.ErrHeld) && keyOf(err) != gate {
			t.Errorf("AcquireMany while %q is held: expected an error that names it, seen %v", gate, err)
		}
	}
	for _, o := range append(some, again...) {
		o.must(t)
	}
	closed.must(t)
	some, taken, err = acquireSpare(t.Context(), bs[0], requests(keys, longTTL), 2, 3, gate)
	if err != nil || len(taken) != 2 {
		t.Errorf("AcquireMany while nobody has the gate, and fewer than the spare locks are free: expected two locks, "+
			"seen %d, %v", taken, err)
	}
	for _, o := range some {
		o.must(t)
	}
	settled(t, bs[1], keys...)
}

// inherits has somebody wait for the lock of key, whose holder dies. It calls f again and again until the one that
// waits is granted the lock.
func inherits(t testing.TB, h Harness, b backend.Backend, key string, f func()) {
	t.Helper()
	if _, ok := b.(backend.Queuer); !ok || backend.Of(b).Look > 0 {
		t.Skip("the Backend does not implement backend.Queuer, or states Look: nobody knows who waits")
	}
	grab(t, b, key, h.short())
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	q := queue(ctx, b, key, longTTL)
	q.waits(t)
	for waiting := true; waiting; {
		f()
		select {
		case <-q.done:
			waiting = false
		case <-time.After(time.Millisecond):
		}
	}
	q.granted(t, "Queue of a lock whose holder has died to be granted", hangLimit).must(t)
}

func someQueueAtTheGateRefuses(t testing.TB, h Harness) {
	bs, _ := choosers(t, h, 2)
	inherits(t, h, bs[1], gate, func() {
		_ = refusedSome(t, "while somebody waits for the gate", bs[0], requests(places(), longTTL), 1, gate)
	})
}

func someOvertakeNobody(t testing.TB, h Harness) {
	bs, _ := choosers(t, h, 2)
	keys := places()[:2]
	inherits(t, h, bs[1], keys[0], func() {
		some, taken, err := acquireSome(t.Context(), bs[0], requests(keys, longTTL), 1, gate)
		if slices.Contains(taken, 0) {
			t.Error("AcquireMany of two locks of which somebody waits for one: expected the other one, seen that one")
		}
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			wantKind(t, "AcquireMany of two locks of which somebody waits for one", err, locker.ErrHeld)
		}
		for _, o := range some {
			o.must(t)
		}
	})
}

func someTwiceAreGrantedTwice(t testing.TB, h Harness) {
	bs, _ := choosers(t, h, 2)
	keys := places()[:3]
	reqs := requests(keys, longTTL)
	holder := grab(t, bs[1], keys[0], longTTL)
	first, taken := grabSome(t, bs[0], reqs, 1, gate)
	holder.must(t)
	closed := grab(t, bs[1], gate, longTTL)
	second, again, err := acquireSome(t.Context(), bs[0], reqs, 1, gate)
	if err != nil || !slices.Equal(again, taken) {
		t.Errorf("the same AcquireMany again: expected a grant of the locks %d, seen %d, %v", taken, again, err)
	} else if second[0].req.Fence < first[0].req.Fence {
		t.Errorf("the same AcquireMany again: expected token %d again, seen a smaller one, %d", first[0].req.Fence,
			second[0].req.Fence)
	}
	closed.must(t)
	first[0].must(t)
	settled(t, bs[1], keys...)
}

// someInOneStep is the property SomeInOneStep of the Lockers.
func someInOneStep(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 1)
	for _, m := range []locker.Many{
		{Keys: places(), N: 1}, {Keys: places(), N: 2, Gates: []string{gate}}, {Keys: places(), Gates: []string{gate}},
	} {
		leases, err := locker.TryLockMany(t.Context(), ls[0], m, locker.TTL(longTTL))
		acquired := 0
		for _, lease := range leases {
			if lease != nil {
				unlock(t, lease)
				acquired++
			}
		}
		want := m.N
		if want == 0 {
			want = len(m.Keys)
		}
		if able := can(ls[0]).Some || !errors.Is(err, errors.ErrUnsupported); able && (err != nil || acquired != want) {
			t.Errorf("TryLockMany of %d of %d free locks: expected that many leases, seen %d, %v", want, len(m.Keys),
				acquired, err)
		}
	}
}
