package locktus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/golocker/locker"
)

// Locker is a handler.Locker with the locks of a [locker.Locker]. Create one with [New].
type Locker struct {
	locker locker.Locker
}

// New returns a Locker that acquires its locks from l.
func New(l locker.Locker) *Locker { return &Locker{l} }

// UseIn makes composer use l.
func (l *Locker) UseIn(composer *handler.StoreComposer) { composer.UseLocker(l) }

// NewLock implements handler.Locker.
func (l *Locker) NewLock(id string) (handler.Lock, error) { return &lock{of: l, id: id}, nil }

// lock is the lock of an upload, for one request.
type lock struct {
	of    *Locker
	id    string
	lease locker.Lease // nil until it is locked
}

// Lock implements handler.Lock. It calls requestUnlock once, when another request waits for the upload or when the lock
// is lost, unless the lock is unlocked before.
func (k *lock) Lock(ctx context.Context, requestUnlock func()) error {
	lease, err := k.of.locker.Lock(ctx, k.id)
	if err != nil {
		if err = answer(err); errors.Is(err, errUnavailable) { // tusd logs the answer alone
			slog.Default().WarnContext(ctx, "an upload cannot have its lock", "error", err)
		}
		return err
	}
	k.lease = lease
	wanted := locker.Wanted(lease)
	go func() {
		select {
		case <-wanted:
		case <-lease.Done():
		}
		if !errors.Is(lease.Err(), locker.ErrUnlocked) {
			requestUnlock()
		}
	}()
	return nil
}

// Unlock implements handler.Lock. tusd ignores the error.
func (k *lock) Unlock() error { return k.lease.Unlock(context.Background()) }

// errUnavailable is the answer to a request whose lock cannot be acquired because of the store of the locks.
var errUnavailable = handler.NewError("ERR_LOCK_UNAVAILABLE", "the locks of uploads are unavailable",
	http.StatusServiceUnavailable)

// answer returns an error of Lock, with the answer to the request. tusd would show the client the text of an error
// without one, and that has addresses of the store.
func answer(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: %w", handler.ErrLockTimeout, err)
	case errors.Is(err, locker.ErrUnavailable), errors.Is(err, locker.ErrClosed):
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return err
}
