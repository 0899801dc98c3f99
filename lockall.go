package locker

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/golocker/locker/internal/core/ending"
)

// LockAll acquires the locks of all keys, or of none. While another owner holds one of them, LockAll waits until ctx
// ends. Otherwise it is like [Locker.Lock], and opts apply to each of the locks. The order of keys and repeated keys
// make no difference. The error names the key that it is about.
//
// If all locks are free, LockAll acquires them in one step, if l is a [ManyLocker] that can: the store has Many of
// backend.Capabilities, and there are not too many locks for it. Otherwise it acquires them in the order of their
// names, each as Lock does. While it waits for one, it holds those before it. So calls of LockAll cannot wait for each
// other in a circle. On stores with Order of backend.Capabilities, no caller waits for ever: each lock goes to its
// waiters in their order. On others, a caller may be overtaken again and again.
//
// What a store demands of one lock, it demands of each: replicas that confirm it, the limit of a restart guard, the
// right to its key. If one lock cannot be acquired, LockAll releases the others, also if the Client is being closed,
// and if a hook or a middleware panics. If that fails, they are released in the background, or end with their TTL.
//
// A program can still make a circle if it calls Lock or LockAll while it holds other locks. Two programs can then wait
// for each other until a context ends. The option [MaxHold] is a way out. If a lock is lost while LockAll waits for
// another one, for example because MaxHold is over, LockAll releases all locks and begins anew, after a pause that
// grows to a second. MaxHold therefore limits how long the program that waits keeps others waiting. It counts from when
// the first of the locks was acquired, and the lease has less of it left after a wait. With [NoRenewal], the same
// applies to the TTL.
//
// Once LockAll waits or has begun anew, it tolerates a failing store for its [Patience], as Lock does, also if it loses
// locks meanwhile. The number of keys has no limit, but each lock is renewed by itself, and locks that are not acquired
// in one step take a round trip each.
func LockAll(ctx context.Context, l Locker, keys []string, opts ...Option) (*AllLease, error) {
	keys, err := keySet("lockall", keys)
	if err != nil {
		return nil, err
	}
	t := taken{op: "lockall", keys: keys}
	defer t.call.End()
	for n := 0; ; n++ {
		lease, err := t.inOneStep(ctx, l, opts)
		if errors.Is(err, ErrHeld) || n > 0 && isFault(err) {
			if over := ending.Of(ctx); over != nil {
				return nil, ofCaller(ctx, over, err)
			}
			t.call.Wait()
			err = errNotMany
		}
		if errors.Is(err, errors.ErrUnsupported) {
			lease, err = t.inOrder(ctx, func(ctx context.Context, key string) (Lease, error) {
				return l.Lock(ctx, key, opts...)
			})
		}
		var lost *lostEarly
		if !errors.As(err, &lost) {
			return lease, err
		}
		t.call.Wait()
		select {
		case <-time.After(anewDelay(n)):
		case <-ctx.Done():
		}
		if over := ending.Of(ctx); over != nil {
			return nil, ofCaller(ctx, over, lost.last)
		}
	}
}

// TryLockAll makes one attempt to acquire the locks of all keys, and acquires all or none. If another owner holds one
// of them, the error matches [ErrHeld] and names its key. Otherwise TryLockAll is like [LockAll].
//
// If the locks cannot be acquired in one step (see [LockAll]), TryLockAll acquires them in the order of their names. If
// it finds one that is held, it releases those that it has. Another caller may find these locks held meanwhile. Of
// several calls of TryLockAll at the same time, at least one succeeds if nobody else holds the locks. On a store
// of several nodes, split votes can make all of them fail.
func TryLockAll(ctx context.Context, l Locker, keys []string, opts ...Option) (*AllLease, error) {
	keys, err := keySet("trylockall", keys)
	if err != nil {
		return nil, err
	}
	t := taken{op: "trylockall", keys: keys}
	defer t.call.End()
	lease, err := t.inOneStep(ctx, l, opts)
	if errors.Is(err, errors.ErrUnsupported) {
		lease, err = t.inOrder(ctx, func(ctx context.Context, key string) (Lease, error) {
			return l.TryLock(ctx, key, opts...)
		})
	}
	if errors.As(err, new(*lostEarly)) {
		return nil, t.lost()
	}
	return lease, err
}

var errNoKeys = invalid("no keys")

// keySet returns keys in order and without duplicates.
func keySet(op string, keys []string) ([]string, error) {
	if len(keys) == 0 {
		return nil, &Error{op, "", errNoKeys}
	}
	return slices.Compact(slices.Sorted(slices.Values(keys))), nil
}

// anewDelay returns the pause before LockAll begins anew for the n-th time, from 0. It grows to a second, because some
// calls can never succeed: those that need more than the TTL for their round trips. A random part makes it unlikely
// that two callers whose locks are lost at the same time meet again.
func anewDelay(n int) time.Duration {
	d := min(time.Second, minPoll<<min(n, 10))
	return d/2 + rand.N(d/2)
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
