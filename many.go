package locker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/ending"
	"github.com/golocker/locker/internal/core/passing"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/lockertrace"
)

// ManyLocker is an optional interface that may be implemented by a [Locker] that can acquire several locks in one step.
// If not, [LockAll] and [TryLockAll] acquire the locks one after the other, with Lock and TryLock.
//
// LockAll asks only the outermost Locker, so that no middleware is passed over. A middleware that implements ManyLocker
// calls the function [TryLockMany] with the Locker that it wraps, and wraps each of the leases.
type ManyLocker interface {
	// TryLockMany makes one attempt to acquire the locks that m describes. It acquires as many as m asks for, or none. The
	// leases are in the order of m.Keys, and nil for keys that were not acquired. Otherwise it is like TryLock. The error
	// names a key that another owner holds, if it matches ErrHeld.
	//
	// If the error matches errors.ErrUnsupported, these keys cannot be acquired in one step now. Nothing was acquired
	// then.
	TryLockMany(ctx context.Context, m Many, opts ...Option) ([]Lease, error)
}

// Many says which locks [TryLockMany] acquires.
type Many struct {
	Keys []string // sorted and different

	// N is how many of the locks are wanted: the first of Keys that are free. 0 means all of them.
	N int

	// Gates are the keys of further locks. If somebody holds or waits for one of them, nothing is acquired, and the
	// error matches ErrHeld. So callers that need the gate to wait are not overtaken by those that do not wait.
	Gates []string

	// Spare is from how many locks on, which are free beside those that are acquired, the gates do not count. 0 means that
	// they always count.
	Spare int
}

// all reports whether m is about all of its keys, whoever waits elsewhere.
func (m *Many) all() bool { return (m.N == 0 || m.N == len(m.Keys)) && len(m.Gates) == 0 }

// TryLockMany calls the method TryLockMany of l if l is a [ManyLocker]. Otherwise it returns an error that matches
// errors.ErrUnsupported. Without keys, it returns an error that matches [ErrInvalid]. It is for middleware; programs
// call [TryLockAll].
func TryLockMany(ctx context.Context, l Locker, m Many, opts ...Option) ([]Lease, error) {
	if len(m.Keys) == 0 {
		return nil, &Error{"trylock", "", errNoKeys}
	}
	if many, ok := l.(ManyLocker); ok {
		return many.TryLockMany(ctx, m, opts...)
	}
	return nil, errNotMany
}

var errNotMany = fmt.Errorf("these locks cannot be acquired in one step: %w", errors.ErrUnsupported)

// TryLockMany implements [ManyLocker]. It is for [LockAll], [TryLockAll] and middleware.
func (c *Client) TryLockMany(ctx context.Context, m Many, opts ...Option) ([]Lease, error) {
	o := newOptions(opts)
	for i, key := range m.Keys {
		err := o.validate(key)
		switch {
		case err != nil:
		case i > 0 && key <= m.Keys[i-1]:
			err = invalid("the keys are not sorted and different")
		case m.N < 0 || m.N > len(m.Keys) || m.Spare < 0:
			err = invalid("%d of %d locks, and %d to spare", m.N, len(m.Keys), m.Spare)
		}
		if err == nil {
			var e *several.Entry
			if e, err = c.entry(ctx, key); e != nil {
				err = errNotMany // a lock with the name of the group would exclude none of those that have something of it
			} else if err == nil && passing.ResumptionFrom(ctx, key) != nil {
				err = errPart
			}
		}
		if err != nil {
			return nil, &Error{"trylock", key, err}
		}
	}
	if slices.ContainsFunc(m.Gates, func(gate string) bool { return c.blocks(ctx, gate) }) {
		return nil, &Error{"trylock", m.Keys[0], errReentrant}
	}
	leases, err := c.attemptMany(ctx, m, c.waiting(ctx, o))
	if err == nil {
		return leases, nil
	}
	key := strings.Join(m.Keys, ",")
	if about, ok := err.(*Error); ok { //nolint:errorlint // only an error that is nothing but the key and its reason
		key, err = about.Key, about.Err
	}
	return nil, &Error{"trylock", key, withContext(ctx, c.heldByItself(key, o, err))}
}

// acquireMany makes one attempt to acquire the locks that m describes.
func (c *Client) acquireMany(ctx context.Context, reqs []backend.Request, m *Many) ([]*backend.Grant, error) {
	many, ok := c.backend.(backend.ManyAcquirer)
	if !ok || !m.all() && !c.can.Some {
		return nil, errNotMany
	}
	if m.all() {
		return many.AcquireMany(ctx, reqs, backend.Choice{})
	}
	return many.AcquireMany(ctx, reqs, backend.Choice{N: m.N, Gates: m.Gates, Spare: m.Spare})
}

// attemptMany makes one attempt to acquire the locks that m describes, in one step.
func (c *Client) attemptMany(ctx context.Context, m Many, o options) ([]Lease, error) {
	if len(m.Keys) == 0 {
		return nil, errNotMany
	}
	if err := c.admit(); err != nil {
		return nil, err
	}
	defer c.attempts.done()
	if err := ending.Of(ctx); err != nil {
		return nil, err
	}
	reqs := make([]backend.Request, len(m.Keys))
	for i, key := range m.Keys {
		reqs[i] = backend.Request{Key: key, Token: backend.NewToken(), TTL: o.ttl, Label: o.label, MinHold: o.keeps()}
	}
	trace := lockertrace.From(ctx)
	start := time.Now()
	grants, err := c.acquireMany(ctx, reqs, &m)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, errNotMany
	}
	var granted []backend.Request
	var leases []*lease
	sent := make([]time.Time, len(reqs))
	if err = fromBackend(err); err == nil {
		for i, g := range grants {
			if g != nil {
				sent[i] = complete(&reqs[i], g, start)
				granted = append(granted, reqs[i])
			}
		}
		defer func() {
			if len(leases) < len(granted) { // also if a hook panics
				c.giveUpMany(ctx, granted, leases)
			}
		}()
	}
	attempted(trace, start, err)
	if err != nil {
		return nil, err
	}
	all := make([]Lease, len(reqs))
	for i, g := range grants {
		if g == nil {
			continue
		}
		l, err := c.begin(trace.Lease(i), reqs[i], sent[i], o, nil)
		if err != nil {
			return nil, err
		}
		leases, all[i] = append(leases, l), l
	}
	for _, l := range leases {
		own(ctx, l, o)
	}
	return all, nil
}

// giveUpMany releases the locks that were granted to reqs. The first of them have leases.
func (c *Client) giveUpMany(ctx context.Context, reqs []backend.Request, leases []*lease) {
	for _, l := range leases {
		_ = l.grant.finish(l, ErrUnlocked)
	}
	for _, req := range reqs {
		_ = c.giveUp(ctx, req, nil)
	}
}
