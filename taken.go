package locker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/golocker/locker/internal/core/ending"
	"github.com/golocker/locker/internal/core/several"
)

// taken owns the locks that a call of LockAll or TryLockAll has acquired, until the call returns them to its caller. If
// it does not return them, because it fails or because a hook or a middleware panics, taken releases them.
//
// It is in the context of the call. So each Client below adds the leases that it grants, whatever middleware makes of
// them, and Close waits for their release as it waits for an attempt.
type taken struct {
	op   string // for errors
	keys []string

	parts []Lease // as the Locker has returned them, in the order of keys

	call several.Call

	mu     sync.Mutex
	open   bool     // the call is acquiring
	leases []*lease // what the Clients have granted; each is counted in the attempts of its Client
}

type takenKey struct{}

// takenFrom returns the taken of the call that ctx belongs to, or nil.
func takenFrom(ctx context.Context) *taken {
	t, _ := ctx.Value(takenKey{}).(*taken)
	return t
}

// own makes the call for several locks that ctx belongs to, if any, an owner of l, which was acquired with o. It is
// called within the attempt that has acquired l, or l is counted already.
func own(ctx context.Context, l *lease, o options) {
	t, call := takenFrom(ctx), several.CallFrom(ctx)
	if isPart(ctx, l.Key()) {
		l.grant.mu.Lock() // Drain may have told of the lease
		l.part = true
		l.grant.mu.Unlock()
	}
	call.Granted(o.alone())
	if t != nil {
		t.add(l)
	} else if call != nil {
		l.count()
		if !call.Own(l.discount) {
			l.discount()
		}
	}
}

// add makes t an owner of l.
func (t *taken) add(l *lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l.count()
	switch {
	case t.open:
		t.leases = append(t.leases, l)
	case !t.call.Own(l.discount): // the lock of a request that went on when the call had returned
		l.discount()
	}
}

// count counts l in the attempts of its Client, until discount is called or l is released.
func (l *lease) count() {
	if !l.counted.Swap(true) { // a lease that was handed over is counted already
		l.grant.client.attempts.add()
	}
}

func (l *lease) discount() {
	if l.counted.Swap(false) {
		l.grant.client.attempts.done()
	}
}

// acquire calls f, which acquires the locks and sets parts, and returns their lease. If f fails or panics, or a lock is
// lost by then, acquire releases what was acquired. In the last case the error is a *lostEarly.
func (t *taken) acquire(ctx context.Context, f func(ctx context.Context) error) (lease *AllLease, err error) {
	t.mu.Lock()
	t.open = true
	t.mu.Unlock()
	defer func() { t.end(ctx, lease != nil) }()
	if err := f(t.call.With(context.WithValue(ctx, takenKey{}, t))); err != nil {
		return nil, err
	}
	all := NewAllLease(t.parts...)
	if all.Err() != nil {
		return nil, &lostEarly{t.lost()}
	}
	return all, nil
}

// end ends the ownership: the locks are returned, or else released. In the latter case it returns when ctx ends, if not
// before.
func (t *taken) end(ctx context.Context, returned bool) {
	t.mu.Lock()
	parts, leases := t.parts, t.leases
	t.parts, t.leases, t.open = nil, nil, false
	t.mu.Unlock()
	if returned {
		for _, l := range leases {
			if !t.call.Own(l.discount) { // a gate may still be released
				l.discount()
			}
		}
		return
	}
	// The errors say nothing to the caller: what is not released now is released in the background, or ends with its TTL.
	ctx = several.Undo(ctx)
	unlock := func(_ int, l Lease) error { return l.Unlock(ctx) }
	defer func() { // also if middleware panics again
		var rest []Lease
		for _, l := range leases {
			switch _, ours := slices.BinarySearch(t.keys, l.Key()); {
			case !ours: // middleware that changes keys has released it, or keeps it for its own purposes
				l.discount()
			case l.counted.Load(): // no middleware has passed the Unlock on
				rest = append(rest, l)
			}
		}
		_ = each(rest, unlock)
	}()
	_ = each(parts, unlock)
}

// inOneStep acquires all locks in one step. The error matches errors.ErrUnsupported if that is not possible.
func (t *taken) inOneStep(ctx context.Context, l Locker, opts []Option) (*AllLease, error) {
	if len(t.keys) == 1 { // which needs no step of its own
		return nil, errNotMany
	}
	return t.acquire(ctx, func(ctx context.Context) (err error) {
		t.parts, err = TryLockMany(ctx, l, Many{Keys: t.keys}, opts...)
		return err
	})
}

// inOrder acquires the locks one after the other, and keeps those that it has while it waits for the next. If it waited
// without them, a caller with many keys could starve behind callers with one. If one is lost before the others are
// acquired, the error is a *lostEarly.
func (t *taken) inOrder(
	ctx context.Context, acquire func(ctx context.Context, key string) (Lease, error),
) (*AllLease, error) {
	return t.acquire(ctx, func(ctx context.Context) error {
		inner, cancel := context.WithCancel(ctx) // ends when a lock is lost
		var watching sync.WaitGroup
		defer watching.Wait()
		defer cancel()
		for i, key := range t.keys {
			part, err := acquire(inner, key)
			if err != nil {
				lost, over := inner.Err() != nil, ending.Of(ctx)
				switch {
				case over != nil:
					return ofCaller(ctx, over, err)
				case lost && errors.Is(err, ErrDraining):
					return &Error{"lock", key, ErrDraining}
				case lost && errors.Is(err, ErrClosed):
					// Close has ended the leases, and so inner. The caller must not see the error of inner.
					return &Error{"lock", key, ErrClosed}
				case lost && !errors.Is(err, ErrHeld) && !errors.Is(err, ErrUnavailable): // nothing was seen of this lock
					return &lostEarly{t.lost()}
				case lost:
					return &lostEarly{err}
				}
				return err
			}
			t.parts = append(t.parts, part)
			if i == len(t.keys)-1 {
				break
			}
			watching.Go(func() {
				select {
				case <-part.Done():
					cancel()
				case <-inner.Done():
				}
			})
		}
		return nil
	})
}

// lostEarly means that a lock was lost before the others were acquired. last matches ErrHeld or ErrUnavailable, and may
// have the error of a context that inOrder has ended; see ofCaller.
type lostEarly struct{ last error }

func (e *lostEarly) Error() string { return errLostEarly.Error() }

var errLostEarly = errors.New("a lock was lost while others were acquired")

func (t *taken) lost() error {
	return &Error{t.op, t.keys[0], fmt.Errorf("%w: %w", ErrUnavailable, errLostEarly)}
}
