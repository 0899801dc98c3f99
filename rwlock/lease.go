package rwlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/internal/core/slots"
	"github.com/golocker/locker/lockertrace"
)

// locks is what a lease is made of. Readers of one process may share it.
type locks struct {
	slots  []locker.Lease
	number int          // of the first slot
	settle func()       // waits for what the call has left; see slots.Held.Wait
	intent locker.Lease // nil unless it is upgradeable
	all    locker.Lease // of all of these
	entry  bool         // it is one entry of a group, which counts as a slot

	granted time.Time
	wanted  func() <-chan struct{}

	// The following are guarded by the mu of the RWLock.
	users   int            // leases that have not been unlocked
	looked  time.Time      // when newcomers last looked at the gate
	blocked time.Time      // since when each look has found the gate taken; zero if the last one has not
	quiet   time.Time      // until then, newcomers share them without a question to the store
	pause   time.Duration  // between the last question and quiet
	told    map[*hold]bool // leases whose Trace is told of a loss, beside that of the one whose request has acquired them
}

func newLocks(held *slots.Held, intent locker.Lease) *locks {
	k := &locks{
		slots: held.Leases, number: held.Slots[0], settle: held.Wait, intent: intent, granted: time.Now(), users: 1,
	}
	k.looked = k.granted
	parts := k.slots
	if intent != nil {
		parts = append(slices.Clone(parts), intent)
	}
	if k.all = parts[0]; len(parts) > 1 {
		k.all = locker.NewAllLease(parts...)
	}
	k.wanted = sync.OnceValue(func() <-chan struct{} { return locker.Wanted(k.all) })
	return k
}

// newEntry returns the locks that an entry of a group is.
func newEntry(lease locker.Lease) *locks {
	k := newLocks(&slots.Held{Leases: []locker.Lease{lease}, Slots: []int{-1}}, nil)
	k.settle, k.entry = func() {}, true
	return k
}

// greatest returns the slot with the greatest fencing token.
func (k *locks) greatest() locker.Lease {
	return slices.MaxFunc(k.slots, func(a, b locker.Lease) int { return cmp.Compare(a.Fence(), b.Fence()) })
}

// hold is the Lease of a caller.
type hold struct {
	rw    *RWLock
	kind  kind
	key   string
	opts  []locker.Option // of the call
	locks *locks
	trace *lockertrace.Trace // of a reader that shares the locks of another one

	mu       sync.Mutex // guards the following
	err      error      // why the lease ended; nil while it is held
	ended    time.Time
	passed   bool          // its locks belong to another lease, which Upgrade or Downgrade has returned
	done     chan struct{} // closed when err is set
	watching bool          // the locks are watched, to close done

	left, last bool // Unlock was called, and nobody shared the locks; guarded by the mu of the RWLock
}

func newHold(rw *RWLock, kind kind, key string, opts []locker.Option, k *locks) *hold {
	return &hold{rw: rw, kind: kind, key: key, opts: opts, locks: k, done: make(chan struct{})}
}

func (l *hold) Key() string { return l.key }

// Token is the owner value of the entry, or of the slot. Where a key is made of locks, an exclusive lease and an
// upgradeable one have several, and return an empty text.
func (l *hold) Token() string { return l.locks.all.Token() }

func (l *hold) Fence() uint64 { return l.locks.greatest().Fence() }

// Overlaps reports whether others may read at the same time, so that package fence refuses the lease.
func (l *hold) Overlaps() bool { return l.kind != exclusive }

// Unwrap lets locker.Verify and others find what the locks can do. It returns nil once the lease has ended, because
// the locks may go on to belong to others.
func (l *hold) Unwrap() locker.Lease {
	if l.Err() != nil {
		return nil
	}
	return l.locks.all
}

func (l *hold) Until() time.Time {
	_ = l.Err()
	until := l.locks.all.Until()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil && l.ended.Before(until) {
		return l.ended
	}
	return until
}

func (l *hold) Done() <-chan struct{} {
	_ = l.Err()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && !l.watching {
		l.watching = true
		go func() {
			select {
			case <-l.locks.all.Done():
				_ = l.Err()
			case <-l.done:
			}
		}()
	}
	return l.done
}

func (l *hold) Err() error { return l.finish(nil, false) }

// finish ends the lease if one of its locks is lost, or for the given reason if that is not nil, and returns why it has
// ended. With pass, it returns nil if it has ended the lease for the given reason: the locks are those of the caller
// then. It asks the locks without holding mu, because they run the hooks of the program.
func (l *hold) finish(reason error, pass bool) error {
	l.mu.Lock()
	err := l.err
	l.mu.Unlock()
	if err != nil {
		return err
	}
	lost := l.locks.all.Err()
	if lost != nil {
		reason = lost
		if of := (*locker.LostError)(nil); errors.As(lost, &of) {
			reason = of
		}
	}
	if reason == nil {
		return nil
	}
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return l.err
	}
	l.err, l.ended = reason, time.Now()
	l.passed = pass && lost == nil
	close(l.done)
	l.mu.Unlock()
	if lost != nil && l.trace != nil && l.trace.Lost != nil {
		l.trace.Lost(reason)
	}
	if pass && lost == nil {
		return nil
	}
	return reason
}

func (l *hold) Extend(ctx context.Context, opts ...locker.Option) error {
	return l.ask(ctx, "extend", func(ctx context.Context) error { return l.locks.all.Extend(ctx, opts...) })
}

// Verify asks the store about all locks; see locker.Verify.
func (l *hold) Verify(ctx context.Context) error {
	return l.ask(ctx, "verify", func(ctx context.Context) error { return locker.Verify(ctx, l.locks.all) })
}

// Bind binds to to all locks; see locker.Bind.
func (l *hold) Bind(ctx context.Context, to any) error {
	return l.ask(ctx, "verify", func(ctx context.Context) error { return locker.Bind(ctx, l.locks.all, to) })
}

// ask makes a request, which ends with the lease.
func (l *hold) ask(ctx context.Context, op string, request func(ctx context.Context) error) error {
	ctx, cancel := locker.WithLease(ctx, l)
	defer cancel()
	err := l.Err()
	if err == nil {
		err = request(ctx)
	}
	if ended := l.Err(); ended != nil {
		err = ended
	}
	if err != nil {
		return about(op, l.key, slots.Brief(err))
	}
	return nil
}

// Unlock releases the locks if nobody shares them any more.
func (l *hold) Unlock(ctx context.Context) (err error) {
	var ended error
	defer func() { err = l.unlock(ctx, ended) }() // also if a hook panics
	ended = l.finish(locker.ErrUnlocked, false)
	return nil
}

// unlock is Unlock for a lease that has ended, for the given reason.
func (l *hold) unlock(ctx context.Context, ended error) error {
	first, last := l.leave()
	switch {
	case l.wasPassed() || !first && !last:
		return about("unlock", l.key, locker.ErrUnlocked)
	case last:
		defer l.locks.settle()
		if err := l.locks.all.Unlock(ctx); err != nil {
			return about("unlock", l.key, slots.Brief(err))
		}
	case errors.Is(ended, locker.ErrLost):
		return about("unlock", l.key, fmt.Errorf("%w: %w", locker.ErrNotHeld, ended))
	}
	return nil
}

func (l *hold) wasPassed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.passed
}

// leave reports whether Unlock is called for the first time, and whether it has to release the locks.
func (l *hold) leave() (first, last bool) {
	l.rw.mu.Lock()
	defer l.rw.mu.Unlock()
	if !l.left {
		l.left, first = true, true
		delete(l.locks.told, l)
		l.locks.users--
		l.last = l.locks.users == 0
		l.rw.tidy(l.key)
	}
	return first, l.last
}

// Downgrade makes an exclusive lease a shared one, without a gap: no other writer holds the key in between. lease ends,
// as if it had been unlocked, and the caller has to unlock the one that Downgrade returns, which has the same fencing
// token. An upgradeable lease can be downgraded, too. lease may be behind middleware, which does not wrap the new one.
//
// If lease has ended, Downgrade returns the reason. If the store says that one of the locks was no longer held, the
// error matches locker.ErrNotHeld, as that of Unlock does, and nothing is held any more. If it does not answer, the
// other slots are released in the background, or end with their TTL.
func Downgrade(ctx context.Context, lease locker.Lease) (downgraded locker.Lease, err error) {
	l, ok := locker.LeaseAs[*hold](lease)
	if !ok || l.kind == shared {
		return nil, about("downgrade", lease.Key(), fmt.Errorf("%w: the lease is neither exclusive nor upgradeable",
			locker.ErrInvalid))
	}
	if ended := l.finish(locker.ErrUnlocked, true); ended != nil {
		return nil, about("downgrade", l.key, ended)
	}
	if l.locks.entry {
		return l.lower(ctx)
	}
	kept := l.locks.greatest()
	others := slices.DeleteFunc(slices.Clone(l.locks.slots), func(slot locker.Lease) bool { return slot == kept })
	if l.locks.intent != nil {
		others = append(others, l.locks.intent)
	}
	one := &slots.Held{Leases: []locker.Lease{kept}, Slots: []int{-1}}
	next := newHold(l.rw, shared, l.key, l.opts, newLocks(one, nil))
	next.locks.settle = l.locks.settle
	unreleased := append(slices.Clip(others), kept)
	defer func() {
		if downgraded == nil { // also if a middleware panics, which may not have passed its Unlock on
			slots.Release(ctx, unreleased...)
		}
	}()
	err = locker.NewAllLease(others...).Unlock(ctx)
	unreleased = []locker.Lease{kept}
	if errors.Is(err, locker.ErrNotHeld) {
		_ = next.Unlock(ctx)
		return nil, about("downgrade", l.key, slots.Brief(err))
	}
	return next, nil
}

// downgradeBound is how long Downgrade waits for the answer of a store, as Unlock does.
const downgradeBound = time.Second

// lower is Downgrade of an entry of a group, whose lease has ended. If the store does not answer, each renewal asks for
// the same.
func (l *hold) lower(ctx context.Context) (downgraded locker.Lease, err error) {
	entry := l.locks.all
	defer func() {
		if downgraded == nil && err == nil { // a middleware panics
			slots.Release(ctx, entry)
		}
	}()
	next := newHold(l.rw, shared, l.key, l.opts, newEntry(entry))
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), downgradeBound)
	defer cancel()
	x := &several.Extension{Share: true}
	failed := entry.Extend(x.With(bounded))
	switch lost := entry.Err(); {
	case lost != nil:
		failed = cmp.Or(next.Unlock(ctx), lost)
	case x.Heard():
		return next, nil
	default:
		_ = next.Unlock(ctx)
		failed = cmp.Or(failed, errNoContext)
	}
	return nil, about("downgrade", l.key, failed)
}

var errNoContext = fmt.Errorf("%w: a middleware has to pass on the context of its caller to Extend", locker.ErrInvalid)

// Upgrade makes an upgradeable lease an exclusive one, without a gap: no writer holds the key in between. It waits
// until all readers have left, or until ctx ends. Readers that come meanwhile wait behind it. lease ends, as if it had
// been unlocked, and the caller has to unlock the one that Upgrade returns, whose fencing token is greater than those
// of all readers before. The new locks have the options of the call that has returned lease. lease may be behind
// middleware, which does not wrap the new one.
//
// Take lease with Lock or TryLock, and not with locker.Do: the context that Do gives to its function ends with lease,
// and Do returns an error that matches locker.ErrUnlocked.
//
// If Upgrade fails, lease is as before. Errors are those of Lock. If lease has ended, the error is the reason.
func Upgrade(ctx context.Context, lease locker.Lease) (upgraded locker.Lease, err error) {
	l, ok := locker.LeaseAs[*hold](lease)
	if !ok || l.kind != upgradeable {
		return nil, about("upgrade", lease.Key(), fmt.Errorf("%w: the lease is not upgradeable", locker.ErrInvalid))
	}
	if ended := l.Err(); ended != nil {
		return nil, about("upgrade", l.key, ended)
	}
	if l.locks.entry {
		return l.raise(ctx)
	}
	g := l.rw.group(l.key, "gate")
	own := l.locks
	g.Slots = slices.Delete(g.Slots, own.number, own.number+1)
	g.Kept = own.all
	held, err := g.Lock(several.WithKind(ctx, string(exclusive)), len(g.Slots), l.opts)
	if err != nil {
		if ended := l.Err(); ended != nil {
			err = ended
		}
		return nil, about("upgrade", l.key, err)
	}
	parts := held.Leases
	defer func() {
		if upgraded == nil { // also if a middleware panics, which may not have passed its Unlock on
			<-held.Settled
			slots.Release(ctx, parts...)
		}
	}()
	if ended := l.finish(locker.ErrUnlocked, true); ended != nil {
		return nil, about("upgrade", l.key, ended)
	}
	parts = append(slices.Clip(parts), own.slots[0], own.intent)
	own.settle()
	_ = own.intent.Unlock(ctx) // if it is not answered, it goes on in the background
	held.Leases = append(held.Leases, own.slots[0])
	return newHold(l.rw, exclusive, l.key, l.opts, newLocks(held, nil)), nil
}

// raise is Upgrade of an entry of a group. The caller has both entries until the first is released.
func (l *hold) raise(ctx context.Context) (upgraded locker.Lease, err error) {
	own := l.locks.all
	within, cancel := locker.WithLease(ctx, own) // the wait ends with the lease
	defer cancel()
	k, err := l.rw.enterGroup(within, "lock", l.key, exclusive, own, l.opts)
	if err != nil {
		if errors.Is(err, locker.ErrNotHeld) {
			_ = own.Extend(ctx) // it learns of that
		}
		if ended := l.Err(); ended != nil {
			err = ended
		}
		return nil, about("upgrade", l.key, err)
	}
	parts := []locker.Lease{k.all}
	defer func() {
		if upgraded == nil { // also if a middleware panics, which may not have passed its Unlock on
			slots.Release(ctx, parts...)
		}
	}()
	if ended := l.finish(locker.ErrUnlocked, true); ended != nil {
		return nil, about("upgrade", l.key, ended)
	}
	parts = append(parts, own)
	_ = own.Unlock(ctx) // if it is not answered, it goes on in the background
	return newHold(l.rw, exclusive, l.key, l.opts, k), nil
}
