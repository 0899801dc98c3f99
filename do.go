package locker

import (
	"context"
	"errors"
)

// Do calls f while it holds the lock of key. It acquires the lock as [Locker.Lock] does, and unlocks it when f returns
// or panics.
//
// The context passed to f ends when the lock is lost; see [WithLease]. f should return soon after that, because nothing
// prevents it from going on without the lock.
//
// A nil error means that f returned nil, and that the store still had the lock for f when it was released. So f has
// held it all the time. The store is not asked if the lock is handed over to another caller of the [Client]; see
// [NoLocalHandover]. A nil error then means that the validity was not over, and that the store had answered in the 50
// ms before. If the lock was deleted, taken by force or forgotten by the store in these 50 ms, somebody else may have
// held it meanwhile. If that matters, f calls [Verify] before it commits, or shows its fencing token.
//
// Otherwise the error is that of Lock, and f was not called, or it joins some of these:
//
//   - the error of f,
//   - one that matches [ErrLost], if the lock was lost while f ran,
//   - one that matches [ErrReleaseUnknown], if it is not known whether the lock was released. This says nothing of f.
//
// So an error that matches [ErrUnavailable] means that f was not called, unless f returned it. To call Do again is safe
// then.
func Do(ctx context.Context, l Locker, key string, f func(ctx context.Context) error, opts ...Option) error {
	lease, err := l.Lock(ctx, key, opts...)
	if err != nil {
		return err
	}
	return under(ctx, lease, f)
}

// TryDo is like [Do], but makes one attempt to acquire the lock, as [Locker.TryLock] does. If another owner holds the
// lock, f is not called, and the error matches [ErrHeld]. It is for work that somebody else does otherwise:
//
//	err := locker.TryDo(ctx, l, "report", report)
//	if errors.Is(err, locker.ErrHeld) {
//		return nil // another process is at it
//	}
//
// An error of f that matches ErrHeld looks the same.
func TryDo(ctx context.Context, l Locker, key string, f func(ctx context.Context) error, opts ...Option) error {
	lease, err := l.TryLock(ctx, key, opts...)
	if err != nil {
		return err
	}
	return under(ctx, lease, f)
}

// under calls f with a context that ends with lease, and unlocks lease when f returns or panics.
func under(ctx context.Context, lease Lease, f func(ctx context.Context) error) (err error) {
	held, cancel := WithLease(ctx, lease)
	defer func() {
		var lost error
		defer func() { // also if Err panics in a hook
			cancel()
			unlocked := lease.Unlock(ctx)
			if errors.Is(lost, ErrLost) && !errors.Is(unlocked, ErrLost) {
				err = errors.Join(err, &Error{"do", lease.Key(), lost})
			}
			if errors.Is(unlocked, ErrUnavailable) {
				unlocked = &Error{"unlock", lease.Key(), &unknownRelease{unlocked}}
			}
			err = errors.Join(err, unlocked)
		}()
		lost = lease.Err()
	}()
	return f(held)
}
