package nats

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

// ownerPrefixLen is how many bytes of an owner's token are shown.
const ownerPrefixLen = 8

// inspection shows a record to people.
func (r record) inspection() inspect.Inspection {
	i := inspect.Inspection{State: inspect.Free, Fence: r.token()}
	switch r.State {
	case held:
		i.State, i.Label = inspect.Held, r.Label
		i.Held = max(0, time.Duration(r.Age)*time.Millisecond+time.Since(r.stored))
	case kept:
		i.State = inspect.Kept
	case foreign:
		return inspect.Inspection{State: inspect.Foreign}
	default:
		return i
	}
	i.Owner, i.Remaining = r.Owner[:min(ownerPrefixLen, len(r.Owner))], r.remaining()
	return i
}

// Inspect implements [inspect.Inspector]. Remaining and Held compare the clock of this machine with that of the server.
func (b *Backend) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	if err := b.usable(); err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	r, err := b.get(ctx, b.subject(key))
	if err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	return r.inspection(), nil
}

// ForceRelease implements [inspect.Inspector].
func (b *Backend) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	if err := b.usable(); err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	subject := b.subject(key)
	first := ""
	for n := 0; ; n++ {
		r, err := b.get(ctx, subject)
		if err != nil {
			return inspect.Inspection{State: inspect.Unknown}, err
		}
		i := r.inspection()
		switch {
		case r.State == foreign:
			return i, locker.ErrForeignKey
		case !r.taken() || !strings.HasPrefix(r.Owner, owner) || r.State == kept && owner != "":
			return i, locker.ErrNotHeld
		case n > 0 && r.Owner != first: // the lock has changed hands: the new owner keeps it
			return i, locker.ErrNotHeld
		}
		first = r.Owner
		_, err = b.put(ctx, subject, r.seq, record{State: free, ttl: freeFor})
		if !errors.Is(err, errOther) {
			return i, err
		}
		if err := pause(ctx, n); err != nil {
			return i, err
		}
	}
}
