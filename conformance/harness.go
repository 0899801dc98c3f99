package conformance

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// Harness describes how to build the store of locks under test for [RunBackend], [RunLocker], [RunSemaphore] and
// [RunRWLock]. What the store can do it states itself, by its [backend.Capabilities]. A Locker that wraps others states
// what they state, if it has a method Unwrap; another one is a [backend.Capable]. The suites check what is stated, skip
// what is not, and check that nobody sees what is not stated, as far as that can be seen: tokens, for example.
type Harness struct {
	// Store makes an empty store of locks. It is required. It is called once per property, in the property's bubble if
	// there is one. The suite closes the Backends and Lockers; Store registers everything else that has to be closed
	// with t.Cleanup.
	Store func(t testing.TB) Store

	// Bubble runs each property in virtual time. Set it to testing/synctest.Test for a store that lives in the test's
	// process and does no input or output outside it. If it is nil, the properties run in real time and in parallel,
	// and time limits are generous.
	Bubble func(t *testing.T, f func(t *testing.T))

	// MinTTL is the smallest TTL that the store supports, at most five seconds. The suite uses no smaller TTL. 0 means
	// that the store supports every TTL from [locker.MinTTL].
	MinTTL time.Duration

	// Granularity is the unit in which the store counts time, at most one second. The suite uses multiples of it as
	// TTLs, but for one property, and accepts that a lock ends late by up to one unit. A lock must never end early: a
	// TTL that is no multiple is rounded up. 0 means that the store counts in milliseconds or smaller units.
	Granularity time.Duration

	// Retries declares that the Lockers of Store.Client repeat failed requests, as middleware/retry does. The TTL of a
	// lease may then count from a later request. If it is true, the property LatencyCounts is skipped.
	Retries bool

	// semaphore and rwLock make what RunSemaphore and RunRWLock check, of a Locker of the store. nil: packages semaphore
	// and rwlock do.
	semaphore func(l locker.Locker, n, weight int) locker.Locker
	rwLock    func(l locker.Locker) rwLock
}

// Store is one store of locks that several processes share. Open or Client is required. The other functions inject
// faults. If one is nil, the properties that need it are skipped.
type Store struct {
	// Open makes a Backend for the store. It must be as independent of the other Backends as one in another process.
	// RunBackend requires it. The suite closes the Backend if it is an io.Closer.
	Open func() backend.Backend

	// Client makes a Locker for the store. It must be as independent of the other Lockers as one in another process.
	// The suite closes it if locker.As finds an io.Closer. If Client is nil, the suite makes a locker.Client from the
	// Backend that Open returns.
	Client func() locker.Locker

	// Delete removes the lock that the store keeps under key, without the knowledge of its holder.
	Delete func(key string)

	// Foreign stores a value under key that is not a lock: a value of another type, or one without an expiry. intact,
	// which may be nil, reports whether the value is unchanged.
	Foreign func(key string) (intact func() bool)

	// Hang makes the store stop answering until resume is called. As with a stopped process, the store may execute
	// requests that arrive in between after resume. Hang returns when the store has stopped: a process that was sent
	// SIGSTOP may answer for a moment.
	Hang func() (resume func())

	// Down makes the store unreachable until up is called. Requests fail and are not executed. The store keeps its data.
	Down func() (up func())

	// LoseReply makes the store execute the next request of any Backend and lose the answer, together with the
	// connection if there is one. If the request is sent again, it succeeds. A store of several nodes does so on each
	// node.
	LoseReply func()

	// LoseMessages makes the store drop all messages to waiters until restore is called.
	LoseMessages func() (restore func())

	// Restart ends the store like a crash and starts it again with the data that it promises to keep. Locks may be
	// lost; the counters of fencing tokens may not.
	Restart func()

	// Left lists what the store keeps: locks, queue positions of waiters, and everything else that it has created for
	// them. Left omits counters, and tombstones of undone attempts, which may stay for a TTL. A store of several nodes
	// lists the data of all nodes. Of a record.Store, it lists the records that record.Describe does not call free,
	// without those that have not changed for their Length.
	Left func() []string
}

// clients makes n Lockers for a fresh store. They are closed at the end of the test.
func clients(t testing.TB, h Harness, n int) ([]locker.Locker, Store) {
	t.Helper()
	s := h.Store(t)
	client := s.Client
	if client == nil {
		if s.Open == nil {
			t.Fatal("conformance: Store needs Client or Open")
		}
		client = func() locker.Locker { return locker.NewClient(s.Open()) }
	}
	ls := make([]locker.Locker, n)
	for i := range ls {
		ls[i] = client()
		if c, ok := locker.As[io.Closer](ls[i]); ok {
			closeAtTheEnd(t, c)
		}
	}
	return ls, s
}

// backends makes n Backends for a fresh store. They are closed at the end of the test.
func backends(t testing.TB, h Harness, n int) ([]backend.Backend, Store) {
	t.Helper()
	s := h.Store(t)
	if s.Open == nil {
		t.Fatal("conformance: Store needs Open")
	}
	bs := make([]backend.Backend, n)
	for i := range bs {
		bs[i] = s.Open()
		if c, ok := bs[i].(io.Closer); ok {
			closeAtTheEnd(t, c)
		}
	}
	return bs, s
}

// can returns what the store of a Locker states.
func can(l locker.Locker) backend.Capabilities {
	if s, ok := locker.As[backend.Capable](l); ok {
		return s.Capabilities()
	}
	return backend.Capabilities{}
}

// need skips the property if the store does not state a capability.
func need(t testing.TB, stated bool, capability string) {
	t.Helper()
	if !stated {
		t.Skip("the store does not state " + capability)
	}
}

// needWanted skips the property if holders do not learn that others wait.
func needWanted(t testing.TB, of backend.Capabilities) {
	t.Helper()
	need(t, of.TellsWanted || of.AnswersWanted, "TellsWanted or AnswersWanted")
}

func closeAtTheEnd(t testing.TB, c io.Closer) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: expected no error, seen %v", err)
		}
	})
}

// longTTL is for locks that must not expire during a check, so that a lock that is left behind is found.
const longTTL = 5 * time.Minute

// ttl rounds d up to a TTL that the store supports. All TTLs of the suite except longTTL come from it.
func (h Harness) ttl(d time.Duration) time.Duration {
	d = max(d, h.MinTTL)
	if rest := d % max(1, h.Granularity); rest > 0 {
		d += h.Granularity - rest
	}
	return d
}

// short is the TTL of locks that should end soon or be extended often. In real time it is longer: on a busy machine, a
// renewal may be late by half a second without a fault of the locker.
func (h Harness) short() time.Duration {
	if h.Bubble != nil {
		return h.ttl(500 * time.Millisecond)
	}
	return h.ttl(time.Second)
}

// late is the accepted delay until an expired lock is free or passed on.
func (h Harness) late() time.Duration { return slack + h.Granularity }

// drift is how far the clock of a store may run ahead of the test's clock within d. In real time the store may have its
// own clock, which may be adjusted. Leases allow for more drift than this: 1 % and 2 ms.
func (h Harness) drift(d time.Duration) time.Duration {
	if h.Bubble != nil {
		return 0
	}
	return d / 1000
}

// milliseconds is the limit for "within milliseconds". In real time the fastest of several tries counts.
func (h Harness) milliseconds() (late time.Duration, tries int) {
	if h.Bubble != nil {
		return 20 * time.Millisecond, 1
	}
	return 200 * time.Millisecond, 5
}

// wantRemaining checks the reported remaining time of a lock that was set for ttl.
func (h Harness) wantRemaining(t testing.TB, what string, remaining, ttl time.Duration) {
	t.Helper()
	if most := ttl + h.Granularity; remaining < 0 || remaining > most {
		t.Errorf("%s: expected a remaining time from 0 (not known) to %v, seen %v", what, most, remaining)
	}
}

// sentinels are the errors that an error of a Locker may match.
var sentinels = []error{
	locker.ErrHeld, locker.ErrNotHeld, locker.ErrLost, locker.ErrUnlocked, locker.ErrNoQuorum, locker.ErrUnavailable,
	locker.ErrInvalid, locker.ErrForeignKey, locker.ErrClosed, context.Canceled, context.DeadlineExceeded,
}

// wantError checks that err is a *locker.Error that matches all of want and no other sentinel.
func wantError(t testing.TB, what string, err error, want ...error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: expected an error that matches %q, seen none", what, want)
		return
	}
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: expected an error that matches %q, seen %q", what, w, err)
		}
	}
	for _, s := range sentinels {
		if errors.Is(s, locker.ErrNoQuorum) && slices.Contains(want, locker.ErrUnavailable) {
			continue // a store of several nodes is unavailable in this way
		}
		if errors.Is(err, s) && !slices.Contains(want, s) {
			t.Errorf("%s: expected an error that does not match %q, seen %q", what, s, err)
		}
	}
	if e := (*locker.Error)(nil); !errors.As(err, &e) {
		t.Errorf("%s: expected a *locker.Error, seen %T %q", what, err, err)
	}
}

// lock acquires key, which must be free.
func lock(t testing.TB, l locker.Locker, key string, opts ...locker.Option) locker.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	start := time.Now()
	lease, err := l.TryLock(ctx, key, opts...)
	prompt(t, start)
	if err != nil {
		t.Fatalf("TryLock of the free lock %.40q: expected a lease, seen %v", key, err)
	}
	return lease
}

func unlock(t testing.TB, lease locker.Lease) {
	t.Helper()
	start := time.Now()
	err := lease.Unlock(t.Context())
	prompt(t, start)
	if err != nil {
		t.Errorf("Unlock of the held lock %.40q: expected no error, seen %q", lease.Key(), err)
	}
}

// wantHeld checks that l cannot acquire key.
func wantHeld(t testing.TB, l locker.Locker, key string) {
	t.Helper()
	start := time.Now()
	lease, err := l.TryLock(t.Context(), key)
	prompt(t, start)
	wantError(t, "TryLock of a held lock", err, locker.ErrHeld)
	if err == nil {
		_ = lease.Unlock(t.Context())
	}
}

// isDone reports whether the lease's Done is closed.
func isDone(l locker.Lease) bool {
	select {
	case <-l.Done():
		return true
	default:
		return false
	}
}

// waitUntilEmpty waits until the store keeps nothing, for limit at most: a store may clean up after it has answered.
func waitUntilEmpty(t testing.TB, left func() []string, what string, limit time.Duration) {
	t.Helper()
	var seen []string
	pause := time.Millisecond
	for end := time.Now().Add(limit); ; pause = min(2*pause, 50*time.Millisecond) {
		if seen = left(); len(seen) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
		time.Sleep(pause)
	}
	slices.Sort(seen)
	t.Errorf("%s: expected the store to keep nothing, seen %d left after %v: %.400q", what, len(seen), limit, seen)
}

func nothingIsLeft(t testing.TB, h Harness) {
	ls, s := clients(t, h, 3)
	if s.Left == nil {
		t.Skip("the harness has no Left")
	}
	for _, key := range []string{"a", "b", "a:b"} {
		for _, l := range ls {
			lease := lock(t, l, key, locker.TTL(longTTL))
			wantHeld(t, ls[0], key)
			unlock(t, lease)
		}
	}
	waitUntilEmpty(t, s.Left, "after locks were unlocked", slack)
	contend(t, ls, 2, func(lease locker.Lease, _ time.Time) {
		time.Sleep(time.Millisecond) // so that others wait
		_ = lease.Unlock(t.Context())
	})
	waitUntilEmpty(t, s.Left, "after many have contended for a lock", slack)
	holder := lock(t, ls[0], "k", locker.TTL(longTTL))
	for _, l := range ls[1:] {
		ctx, leave := context.WithCancel(t.Context())
		w := wait(ctx, l, "k")
		w.settle(unheard)
		leave()
		await(t, "Lock to return when its context has ended", w.done, slack)
	}
	unlock(t, holder)
	waitUntilEmpty(t, s.Left, "after waiters have left", hangLimit)
	lock(t, ls[0], "expired", locker.TTL(h.short()), locker.NoRenewal())
	unlock(t, lock(t, ls[0], "kept", locker.TTL(longTTL), locker.MinHold(h.short())))
	waitUntilEmpty(t, s.Left, "after the time of locks was over", h.short()+hangLimit)
}
