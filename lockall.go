package locker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/golocker/locker/internal/ending"
)

// ManyLocker is an optional interface that may be implemented by a [Locker] that can acquire several locks in one step.
// If not, [LockAll] and [TryLockAll] acquire the locks one after the other, with Lock and TryLock.
//
// LockAll asks only the outermost Locker, so that no middleware is passed over. A middleware that implements ManyLocker
// calls the function [TryLockMany] with the Locker that it wraps, and wraps each of the leases.
type ManyLocker interface {
	// TryLockMany makes one attempt to acquire all keys, which are sorted and different. It acquires either all of them
	// or none, and returns the leases in the order of keys. Otherwise it is like TryLock. The error names a key that
	// another owner holds, if it matches ErrHeld.
	//
	// If the error matches errors.ErrUnsupported, these keys cannot be acquired in one step now. Nothing was acquired
	// then.
	TryLockMany(ctx context.Context, keys []string, opts ...Option) ([]Lease, error)
}

// TryLockMany calls the method TryLockMany of l if l is a [ManyLocker]. Otherwise it returns an error that matches
// errors.ErrUnsupported. It is for middleware; programs call [TryLockAll].
func TryLockMany(ctx context.Context, l Locker, keys []string, opts ...Option) ([]Lease, error) {
	if m, ok := l.(ManyLocker); ok {
		return m.TryLockMany(ctx, keys, opts...)
	}
	return nil, errNotMany
}

// LockAll acquires the locks of all keys, or of none. While another owner holds one of them, LockAll waits until ctx
// ends. Otherwise it is like [Locker.Lock], and opts apply to each of the locks. The order of keys and repeated keys
// make no difference. The error names the key that it is about.
//
// If all locks are free, LockAll acquires them in one step, if l is a [ManyLocker] that can: in memory; on one Redis,
// up to 64 locks, and behind a Redis Cluster only if the keys share a hash slot; in PostgreSQL, up to 64 locks; in
// etcd, up to the size of its transactions; and in NATS from 2.12 on. Otherwise, as on Redlock and with PostgreSQL's
// advisory locks, it acquires them in the order of their names, each as Lock does. While it waits for one, it holds
// those before it. So calls of LockAll cannot wait for each other in a circle, and no caller waits for ever: each lock
// goes to its waiters in their order. NATS has no such order, so a caller there may be overtaken again and again.
//
// What a store demands of one lock, it demands of each: replicas that confirm it, the limit of a restart guard, the
// right to its key. If one lock cannot be acquired, LockAll releases the others. If that fails, they are released in
// the background, or end with their TTL.
//
// A program can still make a circle if it calls Lock or LockAll while it holds other locks. Two programs can then wait
// for each other until a context ends. The option [MaxHold] is a way out. If a lock is lost while LockAll waits for
// another one, for example because MaxHold is over, LockAll releases all locks and begins anew. MaxHold therefore
// limits how long the program that waits keeps others waiting. It counts from when the first of the locks was acquired,
// and the lease has less of it left after a wait. With [NoRenewal], the same applies to the TTL.
func LockAll(ctx context.Context, l Locker, keys []string, opts ...Option) (*AllLease, error) {
	keys, err := keySet("lockall", keys)
	if err != nil {
		return nil, err
	}
	for {
		lease, err := tryStep(ctx, l, keys, opts)
		held := errors.Is(err, ErrHeld)
		if held {
			if over := ending.Of(ctx); over != nil {
				return nil, ofCaller(ctx, over, err)
			}
		}
		if held || errors.Is(err, errors.ErrUnsupported) {
			lease, err = inOrder(ctx, keys, func(ctx context.Context, key string) (Lease, error) {
				return l.Lock(ctx, key, opts...)
			})
		}
		if !errors.Is(err, errAnew) {
			return lease, err
		}
	}
}

// TryLockAll makes one attempt to acquire the locks of all keys, and acquires all or none. If another owner holds one
// of them, the error matches [ErrHeld] and names its key. Otherwise TryLockAll is like [LockAll].
//
// If the locks cannot be acquired in one step (see [LockAll]), TryLockAll acquires them in the order of their names. If
// it finds one that is held, it releases those that it has. Another caller may find these locks held meanwhile. Of
// several calls of TryLockAll at the same time, at least one succeeds if nobody else holds the locks. On Redlock, split
// votes can make all of them fail.
func TryLockAll(ctx context.Context, l Locker, keys []string, opts ...Option) (*AllLease, error) {
	keys, err := keySet("trylockall", keys)
	if err != nil {
		return nil, err
	}
	lease, err := tryStep(ctx, l, keys, opts)
	if errors.Is(err, errors.ErrUnsupported) {
		lease, err = inOrder(ctx, keys, func(ctx context.Context, key string) (Lease, error) {
			return l.TryLock(ctx, key, opts...)
		})
	}
	if errors.Is(err, errAnew) { // a lock was lost at once
		return nil, &Error{"trylockall", keys[0], fmt.Errorf("%w: %w", ErrUnavailable, err)}
	}
	return lease, err
}

// keySet returns keys in order and without duplicates.
func keySet(op string, keys []string) ([]string, error) {
	if len(keys) == 0 {
		return nil, &Error{op, "", invalid("no keys")}
	}
	return slices.Compact(slices.Sorted(slices.Values(keys))), nil
}

// tryStep acquires keys in one step. The error matches errors.ErrUnsupported if that is not possible.
func tryStep(ctx context.Context, l Locker, keys []string, opts []Option) (*AllLease, error) {
	if len(keys) == 1 { // which needs no step of its own
		return nil, errNotMany
	}
	parts, err := TryLockMany(ctx, l, keys, opts...)
	if err != nil {
		return nil, err
	}
	return newAllLease(parts), nil
}

// errAnew means that a lock was lost before the others were acquired.
var errAnew = errors.New("a lock was lost while others were acquired")

// inOrder acquires keys one after the other. If one cannot be acquired, it releases the others. If one is lost
// meanwhile, the error is errAnew.
func inOrder(
	ctx context.Context, keys []string, acquire func(ctx context.Context, key string) (Lease, error),
) (*AllLease, error) {
	inner, cancel := context.WithCancel(ctx) // ends when a lock is lost
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	parts := make([]Lease, 0, len(keys))
	for _, key := range keys {
		part, err := acquire(inner, key)
		if err != nil {
			lost, over := inner.Err() != nil, ending.Of(ctx)
			undo(ctx, parts)
			switch {
			case over != nil:
				return nil, ofCaller(ctx, over, err)
			case lost && errors.Is(err, ErrClosed):
				// Close has ended the leases, and so inner. The caller must not see the error of inner.
				return nil, &Error{"lock", key, ErrClosed}
			case lost:
				return nil, errAnew
			}
			return nil, err
		}
		parts = append(parts, part)
		if len(parts) == len(keys) {
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
	a := newAllLease(parts)
	if a.Err() != nil {
		undo(ctx, parts)
		return nil, errAnew
	}
	return a, nil
}

// ofCaller returns err, which is about one of the locks, as the error of a call whose context has ended with over. err
// may not know that yet, or have the error of the context that inOrder has ended.
func ofCaller(ctx context.Context, over, err error) error {
	var e *Error
	if errors.Is(err, over) || !errors.As(err, &e) {
		return err
	}
	return &Error{e.Op, e.Key, withContext(ctx, &shielded{e.Err})}
}

// undo releases locks that were acquired for a call that fails. It returns when ctx ends, if not before.
func undo(ctx context.Context, parts []Lease) {
	// The errors say nothing to the caller: what is not released now is released in the background, or ends with its TTL.
	ctx = context.WithValue(ctx, undoKey{}, true)
	_ = each(parts, func(_ int, part Lease) error { return part.Unlock(ctx) })
}

// undoKey is the key of a value in the context of Unlock. It says that the lease was never returned to a caller, so
// that MinHold does not apply. It is a value because that passes through all middleware.
type undoKey struct{}
