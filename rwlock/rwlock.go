package rwlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/ending"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/internal/core/slots"
)

// places is how many slots a key has. It is a constant, because programs that disagree would not exclude each other.
const places = 64

// RWLock makes the Lockers of one key space: shared, exclusive and upgradeable. Create one with [New]. It is safe for
// concurrent use, and needs no end: what it uses belongs to the Locker below it. The readers of a process share slots
// only if they use the same RWLock.
type RWLock struct {
	locker locker.Locker
	whole  *slots.Whole
	tells  bool            // the store tells at once that others wait
	asks   bool            // it does not, and the answer to an Extend does
	drains <-chan struct{} // closed when the Client below drains; may be nil

	mu      sync.Mutex          // guards the following, and what is in it
	readers map[string]*readers // by key
	alone   bool                // options of the Locker below count from the acquisition, so that slots are not shared
}

// New returns an RWLock whose locks are those of l.
func New(l locker.Locker) *RWLock {
	rw := &RWLock{
		locker: l, whole: slots.NewWhole(l, hasKinds), drains: locker.Draining(l), readers: make(map[string]*readers),
	}
	if of, ok := locker.As[backend.Capable](l); ok {
		can := of.Capabilities()
		rw.tells, rw.asks = can.TellsWanted, can.AnswersWanted && !can.TellsWanted
	}
	return rw
}

func hasKinds(can backend.Capabilities) bool { return can.Kinds }

// Shared returns the Locker of readers. A key may have several holders of it, and one of Upgradeable, but none of
// Exclusive.
func (rw *RWLock) Shared() locker.Locker { return &view{rw, shared} }

// Exclusive returns the Locker of writers. While a key has a holder of it, it has no other of any kind.
func (rw *RWLock) Exclusive() locker.Locker { return &view{rw, exclusive} }

// Upgradeable returns the Locker of readers that may become writers; see [Upgrade]. A key may have one holder of it,
// and holders of Shared, but none of Exclusive.
func (rw *RWLock) Upgradeable() locker.Locker { return &view{rw, upgradeable} }

// Locks returns the names that key has in the store, for an inspect.Inspector and for operators. On stores with Kinds
// of backend.Capabilities, it is the name of the group: Inspect shows the holder whose time is over first, and
// ForceRelease is about the owner that it is given. On others, they are the names of the locks that key is made of: the
// slots, the gate and the intent lock. A holder of Shared has one slot, and a holder of Exclusive has all.
func (rw *RWLock) Locks(key string) []string {
	if rw.whole.IsKnown() {
		return []string{groupName(key)}
	}
	g := rw.group(key, "gate", "intent")
	return append(g.Slots, g.Gates...)
}

type kind string

const (
	shared      kind = "shared"
	exclusive   kind = "exclusive"
	upgradeable kind = "upgradeable"
)

// view is a Locker of an RWLock.
type view struct {
	rw   *RWLock
	kind kind
}

// acquire is a method of a Group: Lock or TryLock.
type acquire func(g *slots.Group, ctx context.Context, n int, opts []locker.Option) (*slots.Held, error)

// Unwrap lets locker.As find the optional interfaces of the Locker below.
func (v *view) Unwrap() locker.Locker { return v.rw.locker }

func (v *view) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return v.acquire(ctx, "lock", key, opts)
}

func (v *view) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return v.acquire(ctx, "trylock", key, opts)
}

// Inspect implements inspect.Inspector: it returns an error, because a key may have several holders. Inspect each of
// the Locks with the Locker below.
func (v *view) Inspect(_ context.Context, key string) (inspect.Inspection, error) {
	return inspect.Inspection{State: inspect.Unknown}, about("inspect", key, errSeveral)
}

// ForceRelease implements inspect.Inspector as Inspect does.
func (v *view) ForceRelease(_ context.Context, key, _ string) (inspect.Inspection, error) {
	return inspect.Inspection{State: inspect.Unknown}, about("release", key, errSeveral)
}

var errSeveral = fmt.Errorf("a key of an RWLock may have several holders: inspect or release one of its Locks: %w",
	errors.ErrUnsupported)

func (v *view) acquire(ctx context.Context, op, key string, opts []locker.Option) (locker.Lease, error) {
	if key == "" {
		return nil, about(op, key, fmt.Errorf("%w: the key is empty", locker.ErrInvalid))
	}
	ctx = several.WithKind(several.ForLocks(ctx), string(v.kind))
	own, other := v.rw.carried(ctx, key)
	if op == "lock" && own {
		return nil, about(op, key, errReentrant)
	}
	// What LockAll has belongs to it until it returns, and a slot that is shared belongs to no call. Whoever may have the
	// same locks by another RWLock asks alone, because only the Client below knows, and sees the context of the call then.
	alone := len(opts) > 0 || ctx.Err() != nil || several.CallFrom(ctx) != nil || op == "lock" && other
	if v.kind == shared && !alone {
		return v.rw.share(ctx, op, key)
	}
	k, err := v.rw.enterGroup(ctx, op, key, v.kind, nil, opts)
	if errors.Is(err, slots.ErrApart) {
		get := method(op)
		switch v.kind {
		case upgradeable:
			k, err = v.rw.upgradeable(ctx, op, key, get, opts)
		case exclusive:
			k, err = v.rw.get(ctx, v.rw.group(key, "intent", "gate"), get, opts, places)
		default:
			k, err = v.rw.get(ctx, v.rw.group(key, "gate"), get, opts, 1)
		}
	}
	if err != nil {
		return nil, err
	}
	return newHold(v.rw, v.kind, key, opts, k), nil
}

// method returns the method of a Group for op.
func method(op string) acquire {
	if op == "trylock" {
		return (*slots.Group).TryLock
	}
	return (*slots.Group).Lock
}

// enterGroup acquires one entry of the group that stands for key, beside from if that is not nil. The error matches
// slots.ErrApart if the key is made of locks.
func (rw *RWLock) enterGroup(
	ctx context.Context, op, key string, kind kind, from locker.Lease, opts []locker.Option,
) (*locks, error) {
	if rw.whole.IsApart() {
		return nil, slots.ErrApart
	}
	e := &several.Entry{Name: groupName(key), Wants: backend.Group{Kind: kinds[kind]}}
	if from != nil {
		e.Wants.From = from.Token()
	}
	lease, err := rw.whole.Acquire(ctx, op, key, e, opts, explain)
	if err != nil {
		return nil, err
	}
	return newEntry(lease), nil
}

var kinds = map[kind]backend.Kind{
	shared: backend.Shared, upgradeable: backend.Upgradeable, exclusive: backend.Exclusive,
}

func groupName(key string) string { return slots.Name(key, several.LocksOf) }

var errReentrant = fmt.Errorf("%w: %w: the context carries a lease of this key", locker.ErrInvalid,
	locker.ErrReentrant)

// carried reports whether ctx carries a lease of key that is of rw, and one that is of any RWLock.
func (rw *RWLock) carried(ctx context.Context, key string) (own, other bool) {
	if _, ok := locker.LeaseFrom(ctx); !ok { // the other looks allocate
		return false, false
	}
	return ctx.Value(ownKey{rw, key}) != nil, ctx.Value(ownKey{nil, key}) != nil
}

// ownKey is the key of a value in a context: a lease of that key that has not ended, if the context carries one.
type ownKey struct {
	rw  *RWLock // nil: of any RWLock
	key string
}

// Is implements several.Sought.
func (k ownKey) Is(lease any) bool {
	l, ok := lease.(*hold)
	return ok && (k.rw == nil || l.rw == k.rw) && l.key == k.key && l.Err() == nil
}

// name returns the name of a lock that belongs to key. A semaphore for the same key has others.
func name(key, what string) string { return slots.Name(key, "rw"+what) }

// get acquires n slots of g.
func (rw *RWLock) get(
	ctx context.Context, g *slots.Group, get acquire, opts []locker.Option, n int,
) (*locks, error) {
	held, err := get(g, ctx, n, opts)
	if err != nil {
		return nil, err
	}
	return newLocks(held, nil), nil
}

func (rw *RWLock) group(key string, gates ...string) *slots.Group {
	g := &slots.Group{Locker: rw.locker, Key: key, Together: true, Explain: explain}
	for i := range places {
		g.Slots = append(g.Slots, name(key, strconv.Itoa(i)))
	}
	for _, gate := range gates {
		g.Gates = append(g.Gates, name(key, gate))
	}
	return g
}

// explain returns the text of an error: held describes a holder, or the first waiter, at a gate if there is one.
func explain(gate bool, held *locker.HeldError) string {
	if gate {
		return slots.First("others come before", held)
	}
	return held.Error()
}

// upgradeable acquires the intent lock and a slot. It needs the gate only while it has the intent lock, as a writer
// does, so that these two cannot wait for each other.
func (rw *RWLock) upgradeable(
	ctx context.Context, op, key string, get acquire, opts []locker.Option,
) (*locks, error) {
	call := several.CallFrom(ctx)
	if call == nil {
		call = new(several.Call)
		ctx = call.With(ctx)
		defer call.End()
	}
	ctx = slots.Waits(ctx, call)
	for {
		k, lost, err := rw.upgradeableOnce(ctx, op, key, get, opts)
		if !lost || op != "lock" || ending.Of(ctx) != nil {
			return k, err
		}
		call.Wait()
		select { // an intent lock without renewal may be lost each time
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// upgradeableOnce is upgradeable without a second try if the intent lock is lost before there is a slot.
func (rw *RWLock) upgradeableOnce(
	ctx context.Context, op, key string, get acquire, opts []locker.Option,
) (k *locks, lost bool, err error) {
	acquire := rw.locker.Lock
	if op == "trylock" {
		acquire = rw.locker.TryLock
	}
	before := rw.group(key, "intent")
	intent, err := acquire(before.Before(ctx, 1), before.Gates[0], append(slices.Clip(opts), locker.NoLocalHandover())...)
	if err != nil {
		return nil, false, about(op, key, err)
	}
	defer func() {
		if k == nil { // also if a hook panics
			slots.Release(ctx, intent)
		}
	}()
	g := rw.group(key, "gate")
	g.Kept = intent
	held, err := get(g, ctx, 1, opts)
	if err != nil {
		return nil, intent.Err() != nil, err
	}
	return newLocks(held, intent), false, nil
}

// about returns err as the error of a call.
func about(op, key string, err error) error {
	var of *locker.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	return &locker.Error{Op: op, Key: key, Err: err}
}
