package conformance

import (
	"io"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// Harness says how to build the store of locks under test, for [RunBackend] and [RunLocker], and what the store is able to do.
type Harness struct {
	// Store makes an empty store of locks. Required; called once per property, in the property's bubble if there is one.
	// What the Backends and Lockers of the store do not close themselves, it closes by t.Cleanup.
	Store func(t testing.TB) Store

	// Bubble runs each property in virtual time: testing/synctest.Test, for stores that live in the test's process
	// and speak to nothing outside it. nil: the properties run in real time, in parallel, and bounds are generous.
	Bubble func(t *testing.T, f func(t *testing.T))

	// MinTTL is the smallest TTL that the store can keep. The suite asks for no smaller one. Five seconds at most; 0 means
	// that the store keeps any TTL from [locker.MinTTL].
	MinTTL time.Duration

	// Granularity is the unit in which the store counts time, such as a second. The suite asks for multiples of it as TTLs,
	// and lets a lock end later by this much than it was asked to. A lock must never end earlier. A second at most; 0 means
	// that the store counts in milliseconds or less.
	Granularity time.Duration

	// Unfenced declares that the store issues no fencing tokens: each grant's must then be 0.
	Unfenced bool

	// FIFO declares that a lock goes to the client that began to wait for it first. false skips the property that checks it.
	FIFO bool

	// Retries declares that a call of Client's Lockers may repeat what has failed (middleware/retry does), so that a lease
	// is counted from a request that was sent later than the first. true skips the property that knows of one request only.
	Retries bool
}

// Store is one store of locks, as several processes share it. Open or Client is required. The other functions do to the
// store what operators, networks and machines do; each of them that is nil skips the properties that need it.
type Store struct {
	// Open makes a Backend of the store that is as independent of the others as another process would be. RunBackend
	// requires it. The suite closes the Backend if it is an io.Closer.
	Open func() locker.Backend

	// Client makes a Locker of the store that is as independent of the others as another process would be. The suite closes
	// it if it has an io.Closer. nil: the suite makes a locker.Client of what Open returns.
	Client func() locker.Locker

	// Delete removes the lock that the store keeps under key, behind the back of its holder.
	Delete func(key string)

	// Foreign puts something under key that is not a lock: of another type, or without an expiry. intact, which may be nil,
	// reports whether it is still there as it was.
	Foreign func(key string) (intact func() bool)

	// Hang makes the store stop answering until resume is called; requests made meanwhile may be executed after it, as on
	// a stopped process.
	Hang func() (resume func())

	// Down makes the store unreachable until up is called: requests fail, and are not executed. The store may have
	// forgotten everything by then.
	Down func() (up func())

	// LoseReply makes the store execute the next request of any Backend and lose the answer, together with its connection
	// if there is one. If the request is sent again, that gets through. A store of several nodes does so on each.
	LoseReply func()

	// LoseMessages makes the store drop what it tells waiters, until restore is called.
	LoseMessages func() (restore func())

	// Restart ends the store as a crash does, and starts it again with what it promises to keep over that. Locks may be lost,
	// fencing tokens not.
	Restart func()

	// Left lists what the store keeps: locks, places of waiters, and whatever else it has made for them. Not counters,
	// which may stay, nor what marks an attempt as undone for as long as its TTL. A store of several nodes lists them all.
	Left func() []string
}

// clients makes n Lockers of a fresh store, closed in the end.
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
			closeInTheEnd(t, c)
		}
	}
	return ls, s
}

// backends makes n Backends of a fresh store, closed in the end.
func backends(t testing.TB, h Harness, n int) ([]locker.Backend, Store) {
	t.Helper()
	s := h.Store(t)
	if s.Open == nil {
		t.Fatal("conformance: Store needs Open")
	}
	bs := make([]locker.Backend, n)
	for i := range bs {
		bs[i] = s.Open()
		if c, ok := bs[i].(io.Closer); ok {
			closeInTheEnd(t, c)
		}
	}
	return bs, s
}

func closeInTheEnd(t testing.TB, c io.Closer) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: expected no error, seen %v", err)
		}
	})
}

// longTTL is for locks that must not end by themselves: what is left behind with it is found.
const longTTL = 5 * time.Minute

// ttl is the TTL next to d that the store keeps as it is asked to. All TTLs of the suite but longTTL come from it.
func (h Harness) ttl(d time.Duration) time.Duration {
	d = max(d, h.MinTTL)
	if rest := d % max(1, h.Granularity); rest > 0 {
		d += h.Granularity - rest
	}
	return d
}

// short is the TTL of locks that should end soon, or be extended often. In real time it leaves room for a machine that
// is busy with other tests: a renewal that is late by half a second is the machine's fault, not the locker's.
func (h Harness) short() time.Duration {
	if h.Bubble != nil {
		return h.ttl(500 * time.Millisecond)
	}
	return h.ttl(time.Second)
}

// late is how late a lock may be free, or passed on, when its time is over.
func (h Harness) late() time.Duration { return slack + h.Granularity }

// drift is by how much the clock of a store may be ahead after d. In real time it is another clock, and may be adjusted
// meanwhile; a store must not count on it, but leases allow for more (1 % and 2 ms).
func (h Harness) drift(d time.Duration) time.Duration {
	if h.Bubble != nil {
		return 0
	}
	return d / 1000
}

// milliseconds is how late "within milliseconds" may be. In real time the best of several tries counts.
func (h Harness) milliseconds() (late time.Duration, tries int) {
	if h.Bubble != nil {
		return 20 * time.Millisecond, 1
	}
	return 200 * time.Millisecond, 5
}

// wantRemaining checks what is said to remain of a lock that was set for ttl.
func (h Harness) wantRemaining(t testing.TB, what string, remaining, ttl time.Duration) {
	t.Helper()
	if most := ttl + h.Granularity; remaining < 0 || remaining > most {
		t.Errorf("%s: expected a remaining time from 0 (not known) to %v, seen %v", what, most, remaining)
	}
}
