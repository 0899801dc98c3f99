package lockcertmagic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/golocker/locker"
)

// Storage is a certmagic.Storage with the locks of a [locker.Locker]. All else is done by the storage behind it. Create
// one with [New]. It also implements certmagic.TryLocker and certmagic.LockLeaseRenewer.
//
// certmagic releases a lock by its name. So a Storage keeps leases by name, and lets one goroutine at a time have a
// name, from Lock to Unlock. If that one has lost the lock, the next one waits until it has called Unlock, which would
// release the lock of the next one otherwise. Other processes do not wait for that.
type Storage struct {
	certmagic.Storage
	locker locker.Locker

	mu     sync.Mutex
	claims map[string]*claim // by name
}

// claim is the claim of a goroutine to a name.
type claim struct {
	lease locker.Lease  // nil until the lock is acquired, and again when Unlock begins; guarded by the mu of the Storage
	over  chan struct{} // closed when the next goroutine may claim the name
}

// New returns a Storage that acquires its locks from l, and keeps everything else in s.
func New(s certmagic.Storage, l locker.Locker) *Storage {
	return &Storage{Storage: s, locker: l, claims: map[string]*claim{}}
}

// String returns what certmagic logs of the storage. Without it, certmagic would log the fields of the one behind it.
func (s *Storage) String() string {
	if named, ok := s.Storage.(fmt.Stringer); ok {
		return named.String()
	}
	return fmt.Sprintf("%T", s.Storage)
}

// Lock implements certmagic.Locker. Errors are those of [locker.Locker], and match locker.ErrHeld if ctx has ended
// while another goroutine of this process had the name.
func (s *Storage) Lock(ctx context.Context, name string) error {
	for {
		mine, other := s.claim(name)
		if mine != nil {
			return s.acquire(ctx, name, mine, s.locker.Lock)
		}
		select {
		case <-other.over:
		case <-ctx.Done():
			err := fmt.Errorf("%w: %w of this process", ctx.Err(), locker.ErrHeld)
			return &locker.Error{Op: "lock", Key: name, Err: err}
		}
	}
}

// TryLock implements certmagic.TryLocker. It returns false and no error if another process or goroutine has the lock.
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	mine, _ := s.claim(name)
	if mine == nil {
		return false, nil
	}
	err := s.acquire(ctx, name, mine, s.locker.TryLock)
	if errors.Is(err, locker.ErrHeld) {
		return false, nil
	}
	return err == nil, err
}

// Unlock implements certmagic.Locker. An error matches locker.ErrLost if the lock was lost, so that another process may
// have had it meanwhile. It matches locker.ErrUnavailable if the store has not answered: the release then goes on in
// the background, or the lock ends with its TTL. It matches locker.ErrUnlocked if the name is not locked. The name is
// free for other goroutines in any case.
func (s *Storage) Unlock(ctx context.Context, name string) (err error) {
	s.mu.Lock()
	mine, lease := s.find(name)
	if lease != nil {
		mine.lease = nil
	}
	s.mu.Unlock()
	if lease == nil {
		return &locker.Error{Op: "unlock", Key: name, Err: locker.ErrUnlocked}
	}
	var lost error
	defer func() { // also if Err panics in a hook
		defer s.forget(name, mine)
		err = lease.Unlock(ctx)
		if errors.Is(lost, locker.ErrLost) && !errors.Is(err, locker.ErrLost) {
			// The store may have had the lock until now, or may not have answered.
			err = errors.Join(&locker.Error{Op: "unlock", Key: name, Err: lost}, err)
		}
	}()
	lost = lease.Err()
	return nil
}

// RenewLockLease implements certmagic.LockLeaseRenewer. certmagic calls it at the beginning of each attempt to obtain a
// certificate, before it looks whether another instance has obtained it. nil means that the store has just confirmed
// the lock.
//
// If the lock was lost, RenewLockLease acquires it again, and waits for it as Lock does: certmagic would fail in all
// attempts to come otherwise, for thirty days. The duration has no effect. The lease renews itself for longer, and with
// a TTL of hours a crash would block the name for hours.
func (s *Storage) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	s.mu.Lock()
	mine, lost := s.find(name)
	s.mu.Unlock()
	if lost == nil {
		return &locker.Error{Op: "extend", Key: name, Err: locker.ErrUnlocked}
	}
	err := lost.Extend(ctx)
	if !errors.Is(err, locker.ErrLost) {
		return err
	}
	_ = lost.Unlock(ctx) // the store may still have the lock, and the next call would wait for its end
	lease, err := s.locker.Lock(ctx, name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	locked := mine.lease != nil
	if locked {
		mine.lease = lease
	}
	s.mu.Unlock()
	if !locked { // Unlock was called meanwhile, by certmagic.CleanUpOwnLocks
		_ = lease.Unlock(ctx)
		return &locker.Error{Op: "extend", Key: name, Err: locker.ErrUnlocked}
	}
	return nil
}

// claim makes name that of the caller, or returns the claim of the goroutine that has it.
func (s *Storage) claim(name string) (mine, other *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.claims[name]; other != nil {
		return nil, other
	}
	mine = &claim{over: make(chan struct{})}
	s.claims[name] = mine
	return mine, nil
}

// acquire acquires the lock of a name that the caller has claimed.
func (s *Storage) acquire(
	ctx context.Context, name string, mine *claim,
	lock func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error),
) error {
	locked := false
	defer func() {
		if !locked { // also if a hook panics
			s.forget(name, mine)
		}
	}()
	lease, err := lock(ctx, name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	mine.lease, locked = lease, true
	s.mu.Unlock()
	return nil
}

// find returns the claim to name and its lease, or nil if the name is not locked. Call with the mutex held.
func (s *Storage) find(name string) (*claim, locker.Lease) {
	if c := s.claims[name]; c != nil && c.lease != nil {
		return c, c.lease
	}
	return nil, nil
}

// forget ends the claim mine to name.
func (s *Storage) forget(name string, mine *claim) {
	s.mu.Lock()
	delete(s.claims, name)
	s.mu.Unlock()
	close(mine.over)
}
