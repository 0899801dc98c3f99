package slots

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/several"
)

// Whole acquires the places of a key together, as one entry of a group in the store; see backend.Group. Create one with
// [NewWhole].
type Whole struct {
	locker locker.Locker
	stated func(can backend.Capabilities) bool
	found  atomic.Int32 // what a call has found out, for good
}

// What a call finds out: that there are groups, or that each place is a lock.
const (
	groups = iota + 1
	apart
)

// NewWhole returns a Whole for the groups of the Locker l, of whose store can states that it has them.
func NewWhole(l locker.Locker, stated func(can backend.Capabilities) bool) *Whole {
	return &Whole{locker: l, stated: stated}
}

// IsApart reports whether each place is a lock of its own. What the store can do may be hidden by a middleware that has
// no Unwrap, and one that makes other names of all may hide what a call asks for. So a call tells, and it is
// remembered.
func (w *Whole) IsApart() bool {
	of, known := locker.As[backend.Capable](w.locker)
	return w.found.Load() == apart || known && !w.stated(of.Capabilities())
}

// IsKnown reports whether the store is known to have groups.
func (w *Whole) IsKnown() bool {
	_, known := locker.As[backend.Capable](w.locker)
	return (known || w.found.Load() == groups) && !w.IsApart()
}

// finds records what a call has found out. It returns false if another one has found the contrary: locks would exclude
// none of those that have places of the group.
func (w *Whole) finds(what int32) bool {
	return w.found.CompareAndSwap(0, what) || w.found.Load() == what
}

// ErrApart is the error of a Whole whose places are locks of their own.
var ErrApart = errors.New("each place is a lock of its own")

var errAtOdds = fmt.Errorf("%w: a middleware has returned a lock, and has known of the group of places before",
	locker.ErrInvalid)

// Acquire acquires e for a call of op, Lock or TryLock, that is about key. If nobody below knows of the group, the
// error is ErrApart. Others are of type *locker.Error, and say what explain returns, as in [Group].
func (w *Whole) Acquire(
	ctx context.Context, op, key string, e *several.Entry, opts []locker.Option,
	explain func(waits bool, held *locker.HeldError) string,
) (locker.Lease, error) {
	acquire := w.locker.Lock
	if op == "trylock" {
		acquire = w.locker.TryLock
	}
	if call := several.CallFrom(ctx); call != nil {
		ctx = Waits(ctx, call)
	}
	lease, err := acquire(e.With(ctx), e.Name, opts...)
	if err == nil {
		if _, ok := e.Of(lease.Fence()); ok && w.finds(groups) {
			return lease, nil
		}
		Release(ctx, lease) // it is a lock: nobody below knows of the group
		if !w.finds(apart) {
			return nil, &locker.Error{Op: op, Key: key, Err: errAtOdds}
		}
		return nil, ErrApart
	}
	// Errors of connections, such as EOPNOTSUPP, match ErrUnsupported, too. Whoever took them for an answer would have
	// locks beside those that have places of the group.
	if errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, locker.ErrUnavailable) && !w.IsKnown() && w.finds(apart) {
		return nil, ErrApart
	}
	return nil, About(op, key, err, func(_ string, held *locker.HeldError) string {
		return explain(held.Remaining == 0, held) // a waiter has nothing yet
	})
}
