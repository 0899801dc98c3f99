// Package record keeps locks in any store that can replace a record on the condition that it is still the one that was
// read: an object store with conditional writes, a table, a file. Such a [Store] has three methods, and knows nothing
// of locks. The protocol is here.
//
//	l := record.New(store)
//
// # What it promises
//
// While the store keeps the rules of [Store], and keeps what it has acknowledged, a lock has at most one holder at a
// time, provided that the monotonic clock of each client runs at the right speed within 1 %. No other clock is used
// for that: not the time of day, and not the store's, unless the Store is a [ServerClock]. Every acquisition gets
// fencing tokens greater than all earlier ones of its key, whatever clocks do.
//
// # A holder that has crashed
//
// No server counts the TTL. A process takes the lock of another one when it has known the other's last record for the
// whole TTL, 1 % and 2 ms, counted from when it first read the record. So a lock becomes free to those who watch it: at
// most that time after the later of the holder's last renewal and their own first look, and one look of [Poll] later.
//
// If the processes of a Store have one [Clock], nobody needs to watch: a lock is free when its length is over on that
// clock. After a restart of the machine, the length counts from the first attempt of anybody to take the lock.
//
// If the answers of the store tell its time, as those of MySQL and of Amazon's S3 and DynamoDB do, nobody needs to
// watch either: see [ServerClock]. A lock is free when its length is over, and the skew of the store's clocks. Those
// who watch it do not wait for the skew.
//
// On other stores, Lock watches while it waits. A process that calls TryLock now and then watches, too, because a
// [Backend] remembers the records that it has seen or written, 250,000 at most. But a process that looks once and ends
// always finds the lock of a crashed holder held. It has to wait for longer than the TTL, by Lock with a deadline, as
// "locker run --wait 0" does.
//
// # What MinHold keeps
//
// The same is true of a lock that MinHold keeps. Without a clock, in one long-lived Client it ends for the next TryLock
// when its time is over, for the Client that has released it as for one that has looked at it since. A process that
// looks at it for the first time has to watch it for all of MinHold, however long ago it was released. So do not give
// MinHold to a job that is a new process each time: it would run the first time only. On such a store, a tick of
// package once, or "locker run --tick", is for that: nobody watches a tick. "locker run --min-hold" refuses a
// --wait that is not longer.
//
// # Waiting
//
// There is no queue. Each Client that waits looks at intervals, see [Poll], and the first one whose request arrives
// after a release gets the lock. If the Store is a [Watcher], it tells them of changes, and if there are none,
// they look once in ten intervals. Clients that want a lock all the time take turns of a few intervals each: one that
// has waited for four, and sees others take the lock again and again, writes a sign, a record of its own, and who has
// had the lock for an interval and takes it again at once looks for signs. Those who wait for the same lock should have
// the same [Poll].
//
// The callers of one Client wait in the order of their arrival, in one queue that looks for all of them, and hand the
// lock over to each other without the store, for up to 50 ms and as long as the last of them holds it.
//
// # Requests
//
// An acquisition takes two, a read and a write, or only the write if this Backend was the last one to release the lock,
// and a read more once in an interval by Lock. A renewal takes one, three times in a TTL, and a release one. Package
// transfer takes one to pass a lock on, and two to resume it. A Client that waits makes up to 125 a minute by default,
// and 80 on average, for each key, and some 18 if it is told of changes, while the lock is held with a TTL of ten
// seconds. While others take the lock again and again, it makes two more every two intervals.
//
// # Permits, readers and writers
//
// The locks that stand for the places of a key, of packages semaphore and rwlock, share a record: 64 of them, and their
// gates. So to acquire some of them is one write, and what a process holds of a key is renewed by one. The names of the
// locks say so, so it is true for whoever asks for one of them. A caller that waits for several looks at one record.
// While several processes hold locks of one record, each of their writes takes a read before it. A process that writes
// one all the time rests for up to 250 ms now and then, so that others can write it whose way to the store is longer.
//
// # Records
//
// The first acquisition of a key creates its record, which stays for good: a release writes that the lock is free. The
// ticks of a job, of package once, have one record, or one for each second of the minute at which they are. If
// somebody deletes the record of a lock that is held, the lock is free, and its holder learns that with its next
// renewal.
//
// A token is the time of day of the client in microseconds, or one more than the last token of the key, if that is
// greater. So if a record was deleted, its tokens grow nevertheless, and those of different keys are in order, as far
// as the clocks of the clients agree. Places in one record share a counter, and so do readers and writers. Only the
// token of several permits of a semaphore with more than 64, which may be in two records, needs these clocks.
package record

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backend/cleanup"
)

const (
	// DefaultPoll is the longest pause between two looks of a waiter, unless [Poll] says otherwise.
	DefaultPoll = time.Second

	// DefaultTimeout bounds a call, unless [Timeout] says otherwise.
	DefaultTimeout = 5 * time.Second
)

// Option changes what [New] builds.
type Option func(*options)

type options struct {
	poll, timeout, skew time.Duration
	prefix              string
}

// Poll sets the longest pause between two looks of a Client that waits for a lock. The first pause is a sixteenth of
// it, and each is twice as long as the one before. A random part of up to a half is taken off, so that Clients do not
// look at the same time. A Client also looks when the time of the holder would be over. A shorter pause finds a free
// lock sooner, and costs more requests. Zero or less means DefaultPoll.
func Poll(d time.Duration) Option { return func(o *options) { o.poll = d } }

// Timeout bounds a call of Acquire, Extend, Release or Verify, which makes one request or a few. A call that takes
// longer fails with locker.ErrUnavailable. The TTL bounds acquisitions and renewals as well. Zero or less means
// DefaultTimeout.
func Timeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// ClockSkew sets by how much the clocks of the store's machines may differ, from each other and from what they said
// before, on a store that tells its time; see [ServerClock]. If they differ by more, a lock may have two holders. The
// lock of a holder that has crashed becomes free later by as much. Zero means what the Store says, and less that its
// times are not used. A process protects its own locks by its own ClockSkew.
func ClockSkew(d time.Duration) Option { return func(o *options) { o.skew = d } }

// Prefix is put before every key, and becomes part of the name of the record. Without this option, nothing is.
func Prefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// New returns a Client that keeps its locks in store. It sends nothing. Clients that should exclude each other need the
// same store.
func New(store Store, opts ...Option) *locker.Client {
	return locker.NewClient(NewBackend(store, opts...))
}

// Backend implements [backend.Backend] and its optional interfaces backend.Queuer, backend.Verifier and
// backend.Exporter, and inspect.Inspector, inspect.Lister, inspect.FenceRaiser and inspect.Examiner. It is safe for
// concurrent use.
type Backend struct {
	options
	store  Store
	clock  Clock // nil if the store has none
	timing timing
	seen   sightings
	lanes  lanes
	turns  turns
	open   context.Context // ends when Close interrupts what is in progress
	end    context.CancelFunc
	chores cleanup.Queue

	closing chan struct{}
	once    sync.Once
	closed  error // what closing the Store has returned
}

// Capabilities implements [backend.Capable]. The gates of packages semaphore and rwlock have a TTL of ten looks, at
// least three seconds, and at most that of the call; see [Poll].
func (b *Backend) Capabilities() backend.Capabilities {
	c := backend.Capabilities{
		Tokens: true, Blocks: true, Labels: true, CountsTime: b.clock != nil || b.timing.skew > 0, Some: true,
		Look: b.poll,
	}
	if bills, ok := b.store.(Biller); ok {
		c.ListPrice = bills.ListPrice()
	}
	return c
}

// NewBackend returns a Backend of store, as New does.
func NewBackend(store Store, opts ...Option) *Backend {
	b := &Backend{store: store, closing: make(chan struct{})}
	b.clock, _ = store.(Clock)
	for _, opt := range opts {
		opt(&b.options)
	}
	if b.poll <= 0 {
		b.poll = DefaultPoll
	}
	if b.timeout <= 0 {
		b.timeout = DefaultTimeout
	}
	if c, ok := store.(ServerClock); ok && b.clock == nil && b.skew >= 0 {
		b.timing.resolution, b.timing.skew = c.ServerClock()
		if b.skew > 0 {
			b.timing.skew = min(b.skew, maxSkew)
		}
		if b.timing.resolution <= 0 {
			b.timing.skew = 0
		}
	}
	b.open, b.end = context.WithCancel(context.Background())
	b.chores.Timeout = b.timeout
	return b
}

const (
	// closeGrace is how long Close waits for clean-ups.
	closeGrace = 250 * time.Millisecond

	// cleanupTime is for how long beyond the TTL of a lock its clean-up is repeated. Nobody relies on the lock then, but
	// those who watch it still wait for its length.
	cleanupTime = time.Minute
)

// Close gives each clean-up in progress one more try, for a moment, and then interrupts all calls. It closes the Store
// if that is an io.Closer. What could not be cleaned up ends with its TTL.
func (b *Backend) Close() error {
	b.once.Do(func() {
		close(b.closing)
		b.chores.Close(closeGrace)
		b.end()
		if c, ok := b.store.(io.Closer); ok {
			b.closed = c.Close()
		}
	})
	return b.closed
}

// usable returns an error if the Backend was closed.
func (b *Backend) usable() error {
	select {
	case <-b.closing:
		return locker.ErrClosed
	default:
		return nil
	}
}

// bounded returns ctx with the timeout of one call, which Close interrupts.
func (b *Backend) bounded(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, min(b.timeout, most))
	stop := context.AfterFunc(b.open, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

func unavailable(err error) error { return fmt.Errorf("%w: %w", locker.ErrUnavailable, err) }

// pause waits before a change is tried again, the n-th time. The first time it does not wait.
func pause(ctx context.Context, n int) error {
	if n > 0 {
		d := min(5*time.Millisecond<<min(n-1, 10), 200*time.Millisecond)
		sleep(ctx, d/2+rand.N(d/2))
	}
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// sleep returns after d, or at the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
