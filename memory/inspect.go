package memory

import (
	"context"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

// ownerPrefixLen is how many bytes of an owner's token are shown.
const ownerPrefixLen = 8

// Inspect implements [inspect.Inspector].
func (b *Backend) Inspect(_ context.Context, key string) (inspect.Inspection, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inspect(key), nil
}

// inspect returns what is known about key. Call with mu held.
func (b *Backend) inspect(key string) inspect.Inspection {
	l, ok := b.locks[key]
	if !ok || !l.taken() && len(l.waiting) == 0 {
		return inspect.Inspection{State: inspect.Free}
	}
	l = b.lock(key) // hands the lock to the next waiter if it has expired
	i := inspect.Inspection{
		State: inspect.Held, Owner: l.token[:min(ownerPrefixLen, len(l.token))], Label: l.label,
		Remaining: time.Until(l.expires), Held: time.Since(l.since), Fence: l.fence, Waiting: len(l.waiting),
	}
	if l.token == "" {
		i.State = inspect.Kept
	}
	return i
}

// ForceRelease implements [inspect.Inspector].
func (b *Backend) ForceRelease(_ context.Context, key, owner string) (inspect.Inspection, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := b.inspect(key)
	l := b.locks[key]
	if i.State == inspect.Free || !strings.HasPrefix(l.token, owner) {
		return i, locker.ErrNotHeld
	}
	l.token, l.label, l.expires = "", "", time.Time{}
	b.next(key, l)
	return i, nil
}
