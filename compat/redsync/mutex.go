package redsync

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/compat/internal/retries"
	"github.com/golocker/locker/inspect"
)

// DelayFunc returns how long Lock waits before the next attempt, after tries attempts.
type DelayFunc func(tries int) time.Duration

// Mutex is a lock that ends after its expiry unless it is extended. It is safe for concurrent use. Callers that should
// exclude each other need a Mutex each, because it has one lock at a time.
type Mutex struct {
	redsync *Redsync
	name    string

	expiry        time.Duration
	tries         int
	delay         DelayFunc
	driftFactor   float64
	timeoutFactor float64
	relocks       bool   // Extend acquires the lock again
	value         string // of a lock that was acquired elsewhere

	mu    sync.Mutex
	lease locker.Lease // of the last Lock that has succeeded; nil if there was none
}

// Name returns the name of the lock.
func (m *Mutex) Name() string { return m.name }

// Lease returns the lease of the last Lock that has succeeded, or nil, for code that has moved: it has a fencing token,
// and tells when the lock is lost. go-redsync has no such method.
func (m *Mutex) Lease() locker.Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lease
}

// Value returns the owner value of the last Lock that has succeeded, or that of [WithValue]. Each Lock has another one.
// Whoever knows it can release the lock.
func (m *Mutex) Value() string {
	if lease := m.Lease(); lease != nil {
		return lease.Token()
	}
	return m.value
}

// Until returns until when the holder can rely on the lock, or the zero time if there was none. If the lock is over, it
// is the time at which it ended, or earlier.
func (m *Mutex) Until() time.Time {
	lease := m.Lease()
	if lease == nil {
		return time.Time{}
	}
	return m.until(lease)
}

// leaseDrift is the part of the TTL that leases allow for the drift of clocks.
const leaseDrift = 0.01

func (m *Mutex) until(lease locker.Lease) time.Time {
	return lease.Until().Add(-time.Duration(max(0, m.driftFactor-leaseDrift) * float64(m.expiry)))
}

// TryLock is TryLockContext without a limit.
func (m *Mutex) TryLock() error { return m.TryLockContext(context.Background()) }

// TryLockContext makes one attempt to acquire the lock.
func (m *Mutex) TryLockContext(ctx context.Context) error { return m.lock(ctx, 1) }

// Lock is LockContext without a limit but that of the tries.
func (m *Mutex) Lock() error { return m.LockContext(context.Background()) }

// LockContext acquires the lock, and waits for it for as long as all tries and the delays between them last. Meanwhile
// the caller is in the queue, so it gets the lock in its turn as soon as the holder releases it. Attempts that fail
// because a server does not answer are repeated, too.
//
// Errors are ErrFailed if ctx ended, and otherwise that of the last attempt: an *ErrTaken, or one that errors.As finds
// a *RedisError in. If it matches locker.ErrInvalid, trying again does not help.
func (m *Mutex) LockContext(ctx context.Context) error { return m.lock(ctx, m.tries) }

func (m *Mutex) lock(ctx context.Context, tries int) error {
	if tries < 1 {
		return ErrFailed
	}
	ctx = orBackground(ctx)
	// Without the last option, leases could share a value, and WithValue would unlock a successor.
	options := []locker.Option{locker.TTL(m.expiry), locker.NoRenewal(), locker.NoLocalHandover()}
	attempt, made := time.Duration(float64(m.expiry)*m.timeoutFactor), 0
	lease, err := retries.Call{
		Try: func(ctx context.Context) (locker.Lease, error) {
			ctx, cancel := context.WithTimeout(ctx, attempt)
			defer cancel()
			return m.redsync.locker.TryLock(ctx, m.name, options...)
		},
		Wait: func(ctx context.Context) (locker.Lease, error) {
			return m.redsync.locker.Lock(ctx, m.name, options...)
		},
		Next: func() (time.Duration, bool) {
			if made++; made >= tries {
				return 0, false
			}
			return m.delay(made), true
		},
		Again: func(err error) bool {
			return !errors.Is(err, locker.ErrInvalid) && !errors.Is(err, locker.ErrClosed)
		},
	}.Acquire(ctx)
	switch {
	case err != nil && ctx.Err() != nil && tries > 1:
		return ErrFailed
	case err != nil:
		return m.redsync.failure(err)
	case !time.Now().Before(m.until(lease)): // by another drift factor
		_ = lease.Unlock(ctx)
		return ErrFailed
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lease = lease
	return nil
}

// orBackground allows callers to pass nil, as redsync does.
func orBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}

var errNotLocked = fmt.Errorf("%w: the mutex has not been locked", locker.ErrNotHeld)

// Unlock is UnlockContext without a limit.
func (m *Mutex) Unlock() (bool, error) { return m.UnlockContext(context.Background()) }

// UnlockContext releases the lock. It also works if ctx has ended, and waits for a second at most. It returns true if
// the servers still had the lock. Otherwise the error is an *ErrTaken if another owner has the lock, and matches
// ErrLockAlreadyExpired if nobody has it. If errors.As finds a *RedisError in it, the outcome is not known, and Unlock
// may be called again.
func (m *Mutex) UnlockContext(ctx context.Context) (bool, error) {
	ctx = orBackground(ctx)
	lease := m.Lease()
	var err error
	switch {
	case lease != nil:
		err = lease.Unlock(ctx)
	case m.value != "":
		return m.unlockElsewhere(ctx)
	default:
		err = errNotLocked
	}
	var notHeld *locker.NotHeldError
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &notHeld) && notHeld.Reason != locker.LostGone:
		return false, m.redsync.taken(err)
	case isOver(err):
		return false, fmt.Errorf("%w: %w", ErrLockAlreadyExpired, err)
	}
	return false, m.redsync.failure(err)
}

// unlockElsewhere releases a lock that was acquired elsewhere.
func (m *Mutex) unlockElsewhere(ctx context.Context) (bool, error) {
	seen, err := inspect.Inspection{State: inspect.Free}, errNotWhole
	if m.whole() {
		seen, err = m.redsync.locker.ForceRelease(ctx, m.name, m.value)
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, locker.ErrNotHeld) && seen.State == inspect.Free:
		return false, fmt.Errorf("%w: %w", ErrLockAlreadyExpired, err)
	}
	return false, m.redsync.failure(err)
}

var errNotWhole = fmt.Errorf("%w: WithValue was given what no Mutex has as its value", locker.ErrNotHeld)

// whole reports whether the value of WithValue can be that of a lock. ForceRelease would take the lock from everybody
// whose value begins with a shorter one.
func (m *Mutex) whole() bool {
	const others = 24 // what go-redsync makes: 16 bytes in base64
	return len(m.value) == len(backend.NewToken()) || len(m.value) == others && strings.HasSuffix(m.value, "==")
}

var errElsewhere = fmt.Errorf("redsync: a lock that was acquired elsewhere cannot be extended: %w",
	errors.ErrUnsupported)

// Extend is ExtendContext without a limit.
func (m *Mutex) Extend() (bool, error) { return m.ExtendContext(context.Background()) }

// ExtendContext sets the end of the lock to a whole expiry from now. If the lock is over, the error matches
// ErrExtendFailed, and errors.As finds an *ErrTaken in it.
func (m *Mutex) ExtendContext(ctx context.Context) (bool, error) {
	ctx = orBackground(ctx)
	lease, err := m.Lease(), errNotLocked
	switch {
	case lease != nil:
		err = lease.Extend(ctx)
	case m.value != "":
		return false, errElsewhere
	}
	switch {
	case err == nil && time.Now().Before(m.until(lease)):
		return true, nil
	case err == nil:
		return false, ErrExtendFailed
	case !isOver(err):
		return false, m.redsync.failure(err)
	case m.relocks:
		err = m.lock(ctx, 1)
		return err == nil, err
	}
	return false, fmt.Errorf("%w: %w", ErrExtendFailed, m.redsync.taken(err))
}

// Valid is ValidContext without a limit.
func (m *Mutex) Valid() (bool, error) { return m.ValidContext(context.Background()) }

// ValidContext asks the servers whether they still have the lock. The answer is about the past: prefer Until, or the
// Lease. If the lock is over, the error is an *ErrTaken.
func (m *Mutex) ValidContext(ctx context.Context) (bool, error) {
	ctx = orBackground(ctx)
	lease, err := m.Lease(), errNotLocked
	switch {
	case lease != nil:
		err = locker.Verify(ctx, lease)
	case m.value != "":
		err = m.elsewhere(ctx)
	}
	if err != nil {
		return false, m.redsync.failure(err)
	}
	return true, nil
}

// elsewhere returns nil if the lock belongs to the owner of the value that WithValue was given.
func (m *Mutex) elsewhere(ctx context.Context) error {
	seen, err := m.redsync.locker.Inspect(ctx, m.name)
	if err == nil && (seen.State != inspect.Held || !m.whole() || !strings.HasPrefix(m.value, seen.Owner)) {
		err = fmt.Errorf("%w: the owner of this value does not have it", locker.ErrNotHeld)
	}
	return err
}
