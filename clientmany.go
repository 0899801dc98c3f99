package locker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golocker/locker/internal/ending"
	"github.com/golocker/locker/lockertrace"
)

// ManyAcquirer is an optional interface that may be implemented by a [Backend] that can acquire several locks in one
// step. If not, [LockAll] and [TryLockAll] acquire them one after the other.
type ManyAcquirer interface {
	// AcquireMany makes one attempt to acquire a lock for each of reqs, which have different keys, sorted, and the same
	// options. The rules of Acquire apply to each of them, and in addition:
	//
	//   - It acquires either all of the locks or none, in one atomic step. Nobody sees a part of them held.
	//   - The grants are in the order of reqs.
	//   - If a lock is held by another owner, the error is an *Error that names its key, if it is known.
	//   - It does not overtake callers that wait for one of the locks: that lock counts as held.
	//   - If the error matches errors.ErrUnsupported, these locks cannot be acquired in one step, for example because
	//     they are on different servers, or because somebody waits for one of them. Nothing was acquired then, and the
	//     locks are acquired one after the other.
	AcquireMany(ctx context.Context, reqs []Request) ([]Grant, error)
}

var errNotMany = fmt.Errorf("these locks cannot be acquired in one step: %w", errors.ErrUnsupported)

// TryLockMany implements [ManyLocker]. It is for [LockAll], [TryLockAll] and middleware.
func (c *Client) TryLockMany(ctx context.Context, keys []string, opts ...Option) ([]Lease, error) {
	o := newOptions(opts)
	for i, key := range keys {
		err := o.validate(key)
		if err == nil && i > 0 && key <= keys[i-1] {
			err = invalid("the keys are not sorted and different")
		}
		if err != nil {
			return nil, &Error{"trylock", key, err}
		}
	}
	leases, err := c.attemptMany(ctx, keys, o)
	if err == nil {
		return leases, nil
	}
	key := strings.Join(keys, ",")
	if about, ok := err.(*Error); ok { //nolint:errorlint // only an error that is nothing but the key and its reason
		key, err = about.Key, about.Err
	}
	return nil, &Error{"trylock", key, withContext(ctx, c.heldByItself(key, o, err))}
}

// attemptMany makes one attempt to acquire all keys in one step.
func (c *Client) attemptMany(ctx context.Context, keys []string, o options) ([]Lease, error) {
	many, ok := c.backend.(ManyAcquirer)
	if !ok || len(keys) == 0 {
		return nil, errNotMany
	}
	if !c.enter(&c.attempts) {
		return nil, ErrClosed
	}
	defer c.attempts.Done()
	if err := ending.Of(ctx); err != nil {
		return nil, err
	}
	reqs := make([]Request, len(keys))
	for i, key := range keys {
		reqs[i] = Request{Key: key, Token: NewToken(), TTL: o.ttl, Label: o.label, MinHold: o.minHold}
	}
	trace := lockertrace.From(ctx)
	start := time.Now()
	grants, err := many.AcquireMany(ctx, reqs)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, errNotMany
	}
	leases, sent := make([]*lease, 0, len(keys)), make([]time.Time, len(keys))
	if err = fromBackend(err); err == nil {
		for i := range grants {
			sent[i] = grants[i].of(&reqs[i], start)
		}
		defer func() {
			if len(leases) < len(keys) { // also if a hook panics
				c.giveUpMany(ctx, reqs, leases)
			}
		}()
	}
	attempted(trace, start, err)
	if err != nil {
		return nil, err
	}
	for i, req := range reqs {
		l, err := c.begin(trace.Lease(i), req, sent[i], o)
		if err != nil {
			return nil, err
		}
		leases = append(leases, l)
	}
	all := make([]Lease, len(leases))
	for i, l := range leases {
		takenFrom(ctx).add(l)
		all[i] = l
	}
	return all, nil
}
