package locker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// AllLease is the lease of several locks, which were acquired together by [LockAll] or [TryLockAll]. It is a [Lease]
// that is held while all of the locks are. When one is lost, the lease is lost. The others then stay taken, and are
// renewed, until Unlock, because the code that they protect may still be running.
//
// All methods are safe for concurrent use.
type AllLease struct {
	keys  []string
	parts []Lease // in the order of keys

	// Err does not ask thousands of locks each time. A lease of a Client tells when it ends, unless its time is over.
	telling []*lease      // behind those of parts that end with such a lease
	silent  []Lease       // the other parts
	ended   atomic.Uint64 // how many of telling have told

	mu       sync.Mutex
	seen     uint64        // what ended was before all parts were last asked
	sure     time.Time     // the time of no lease in telling is over before
	done     chan struct{} // closed when err is set
	watching bool          // the parts are watched, to close done
	wanted   *wanted       // nil until the first call of Wanted
	err      error         // why the lease ended; nil while it is held

	unlocking chan struct{} // has a value while a call of Unlock is in progress, to which the next fields then belong
	released  []bool        // by part: Unlock has returned nil
	failed    []error       // by part: the last error of Unlock, except ErrUnlocked
}

var _ Lease = (*AllLease)(nil)

// NewAllLease returns the lease of several locks, which were acquired one by one. Their keys must be different. It is
// for middleware and for other Lockers; programs call [LockAll].
func NewAllLease(parts ...Lease) *AllLease {
	parts = slices.SortedFunc(slices.Values(parts), func(a, b Lease) int { return strings.Compare(a.Key(), b.Key()) })
	a := &AllLease{
		parts: parts, done: make(chan struct{}), unlocking: make(chan struct{}, 1),
		released: make([]bool, len(parts)), failed: make([]error, len(parts)),
	}
	for _, part := range parts {
		a.keys = append(a.keys, part.Key())
		l, ok := LeaseAs[*lease](part)
		if ok = ok && (part == Lease(l) || part.Done() == l.Done()); !ok { // middleware may end its lease before
			a.silent = append(a.silent, part)
			continue
		}
		a.telling = append(a.telling, l)
		l.countEnd(&a.ended)
	}
	return a
}

// Keys returns the names of the locks, in order and without duplicates.
func (a *AllLease) Keys() []string { return slices.Clone(a.keys) }

// FenceOf returns the fencing token of the lock of key; see [Lease.Fence]. It is 0 if key is not one of Keys.
func (a *AllLease) FenceOf(key string) uint64 {
	if i, ok := slices.BinarySearch(a.keys, key); ok {
		return a.parts[i].Fence()
	}
	return 0
}

// Key returns the names of the locks, separated by commas. It is for people: names may contain commas. Use Keys.
func (a *AllLease) Key() string { return strings.Join(a.keys, ",") }

// Token returns an empty text, because each of the locks has an owner value of its own.
func (a *AllLease) Token() string { return "" }

// Fence returns 0, because no single number orders the holders of different sets of locks: use [AllLease.FenceOf], and
// let each resource compare the token of the lock that protects it.
func (a *AllLease) Fence() uint64 { return 0 }

// Overlaps reports whether one of the locks is a permit or a shared lock, which others hold at the same time: tokens do
// not order its holders.
func (a *AllLease) Overlaps() bool {
	return slices.ContainsFunc(a.parts, func(part Lease) bool {
		o, ok := LeaseAs[interface{ Overlaps() bool }](part)
		return ok && o.Overlaps()
	})
}

// Until returns the end of the validity of the lock that ends first; see [Lease.Until].
func (a *AllLease) Until() time.Time {
	until := a.parts[0].Until()
	for _, part := range a.parts[1:] {
		until = earlier(until, part.Until())
	}
	return until
}

// Done returns a channel that is closed when the lease ends; see [Lease.Done]. From the first call on, the lease has a
// goroutine for each lock, until it ends.
func (a *AllLease) Done() <-chan struct{} {
	_ = a.Err()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.watching || a.err != nil {
		return a.done
	}
	a.watching = true
	for _, part := range a.parts {
		go func() {
			select {
			case <-part.Done():
				a.ended.Add(1) // perhaps before the part has told
				_ = a.Err()
			case <-a.done:
			}
		}()
	}
	return a.done
}

// Wanted returns a channel that is closed when somebody else waits for one of the locks; see the function [Wanted].
// From the first call on, the lease has a goroutine for each lock, until the channel is closed or the lease ends.
func (a *AllLease) Wanted() <-chan struct{} {
	err := a.Err()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wanted != nil {
		return a.wanted.told
	}
	w := &wanted{told: make(chan struct{})}
	a.wanted = w
	for _, part := range a.parts {
		if err != nil {
			break
		}
		go func() {
			select {
			case <-Wanted(part):
				a.want()
			case <-w.told:
			case <-part.Done():
				a.ended.Add(1)
				_ = a.Err()
			case <-a.done:
			}
		}()
	}
	return w.told
}

// want records that others wait for one of the locks, unless the lease has ended.
func (a *AllLease) want() {
	err := a.Err()
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.wanted; err == nil && a.err == nil && !w.is {
		w.is = true
		close(w.told)
	}
}

// Err returns nil while all locks are held. Afterwards it returns [ErrUnlocked], or an [*Error] with the key of a
// lock that was lost and its [*LostError]; see [Lease.Err].
func (a *AllLease) Err() error { return a.finish(nil) }

// finish ends the lease if one of the locks is lost, or for the given reason if that is not nil. It returns the reason
// for which the lease has ended, now or before, or nil if it is still held. It asks the parts without holding mu,
// because they run the hooks of the program.
func (a *AllLease) finish(reason error) error {
	seen, asked := a.ended.Load(), a.silent
	a.mu.Lock()
	err, sure := a.err, a.sure
	if seen != a.seen || left(sure) <= 0 {
		asked = a.parts
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	for _, part := range asked {
		if lost := part.Err(); lost != nil {
			reason = &Error{"hold", part.Key(), lost}
			break
		}
	}
	if reason == nil && len(asked) == len(a.silent) {
		return nil
	}
	for i, l := range a.telling {
		if end := l.end(); i == 0 || end.Before(sure) {
			sure = end
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen, a.sure = seen, sure
	if a.err == nil && reason != nil {
		a.err = reason
		close(a.done)
	}
	return a.err
}

// Extend extends all locks, at the same time; see [Lease.Extend]. The error joins those of the single locks.
func (a *AllLease) Extend(ctx context.Context, opts ...Option) error {
	return a.ask("extend", func(_ int, part Lease) error { return part.Extend(ctx, opts...) })
}

// Verify asks the store about all locks, at the same time; see the function [Verify]. The error joins those of the
// single locks.
func (a *AllLease) Verify(ctx context.Context) error {
	return a.ask("verify", func(_ int, part Lease) error { return Verify(ctx, part) })
}

// Bind binds to to all locks, at the same time; see the function [Bind]. The error joins those of the single locks.
func (a *AllLease) Bind(ctx context.Context, to any) error {
	return a.ask("verify", func(_ int, part Lease) error { return Bind(ctx, part, to) })
}

// ask makes a request for each part. It fails if the lease has ended before the last answer arrived.
func (a *AllLease) ask(op string, request func(i int, part Lease) error) error {
	err := a.Err()
	if err == nil {
		if failed := each(a.parts, request); failed != nil {
			return failed
		}
		err = a.Err()
	}
	if err != nil {
		return &Error{op, a.Key(), err}
	}
	return nil
}

// Unlock releases all locks, at the same time, whatever happens to one of them; see [Lease.Unlock]. The error joins
// those of the single locks, which name their keys. A nil error means that the store had all of the locks for this
// lease until they were released, by this call or by earlier ones.
//
// If Unlock is called again, it tries again for the locks whose outcome is unknown, and reports again what earlier
// calls could not release. When there is nothing more to find out, it reports only the locks that were no longer held
// or, if there was none, [ErrUnlocked].
//
// At most 1,024 locks are released at the same time. If the store does not answer, each further 10,000 locks take a
// second more.
func (a *AllLease) Unlock(ctx context.Context) (err error) {
	defer func() { err = a.unlock(ctx) }() // also if a hook panics
	return a.finish(ErrUnlocked)
}

// unlock releases the locks of a lease that has ended.
func (a *AllLease) unlock(ctx context.Context) error {
	bound := time.NewTimer(releaseBound)
	defer bound.Stop()
	select {
	case a.unlocking <- struct{}{}:
	case <-bound.C:
		return &Error{"unlock", a.Key(), errUnlocking}
	}
	defer func() { <-a.unlocking }()
	again := make([]bool, len(a.parts)) // by part: an earlier call has found out the outcome
	err := each(a.parts, func(i int, part Lease) error {
		if again[i] = a.released[i]; again[i] {
			return nil
		}
		err := part.Unlock(ctx)
		switch {
		case err == nil:
			a.released[i] = true
			return nil
		case !errors.Is(err, ErrUnlocked):
			a.failed[i] = err
		case a.failed[i] != nil:
			again[i] = true
		default:
			// Middleware has released the lock, or an earlier call has panicked after the release.
			err = fmt.Errorf("%w: the outcome of another release is not known", ErrUnavailable)
			a.failed[i] = &Error{"unlock", part.Key(), err}
		}
		return a.failed[i]
	})
	if slices.Contains(again, false) {
		return err
	}
	// To call Unlock again finds out nothing more. So the error must not match ErrUnavailable, which asks for that.
	lost := slices.DeleteFunc(slices.Clone(a.failed), func(err error) bool { return !errors.Is(err, ErrNotHeld) })
	if len(lost) == 0 {
		return &Error{"unlock", a.Key(), ErrUnlocked}
	}
	return errors.Join(lost...)
}

// stalled is after which time without an answer a call of each is slow.
const stalled = 100 * time.Millisecond

// each calls f with all parts, and their positions, at the same time, and joins the errors in the order of parts. It
// makes up to maxInFlight calls at once, so that many locks leave room for other callers of the Client. Those that are
// slow do not count: the calls for a store that does not answer must not wait for each other. If a call panics, each
// panics with the same value when all calls have ended.
func each(parts []Lease, f func(i int, part Lease) error) error {
	type ending struct {
		call     *place
		panicked any
	}
	errs := make([]error, len(parts))
	ended := make(chan ending, len(parts))
	var panicked any
	var calls places
	end := func(e ending) {
		calls.leave(e.call)
		if panicked == nil {
			panicked = e.panicked
		}
	}
	for i, part := range parts {
		for calls.prompt.Len() == maxInFlight {
			first := calls.first()
			select {
			case e := <-ended:
				end(e)
			case <-time.After(time.Until(first.began.Add(stalled))):
				calls.tire(first)
			}
		}
		call := &place{}
		calls.enter(call, time.Now())
		go func() {
			defer func() { ended <- ending{call, recover()} }()
			errs[i] = f(i, part)
		}()
	}
	for calls.prompt.Len()+calls.slow > 0 {
		end(<-ended)
	}
	if panicked != nil {
		panic(panicked)
	}
	return errors.Join(errs...)
}
