package semaphore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/internal/core/slots"
)

// MaxPermits is the largest number of permits. On stores without groups, a caller that waits, waits for each of them.
const MaxPermits = 1024

// Semaphore is a [locker.Locker] whose keys have several holders at a time. Create one with [New]. It is safe for
// concurrent use, and needs no end: what it uses belongs to the Locker below it.
type Semaphore struct {
	locker locker.Locker
	n      int
	weight int
	whole  *slots.Whole
}

// New returns a Semaphore whose keys have at most n holders at a time. n is 1 to [MaxPermits]; with any other number,
// Lock and TryLock return an error that matches locker.ErrInvalid.
func New(l locker.Locker, n int) *Semaphore { return &Semaphore{l, n, 1, slots.NewWhole(l, hasGroups)} }

func hasGroups(can backend.Capabilities) bool { return can.Groups }

// Weight returns a Semaphore for the same permits that acquires k of them with each call: all of them or none. Callers
// of different weights can wait at the same time. k is 1 to n; with any other number, Lock and TryLock return an error
// that matches locker.ErrInvalid.
func (s *Semaphore) Weight(k int) *Semaphore { return &Semaphore{s.locker, s.n, k, s.whole} }

// Unwrap lets locker.As find the optional interfaces of the Locker below.
func (s *Semaphore) Unwrap() locker.Locker { return s.locker }

// Lock acquires a permit of key, and waits for one until ctx ends. The lease is a [*Permit]. Errors are those of
// locker.Locker; locker.ErrHeld means that no permit was free, or that others came before. The text says which, and how
// many permits there are.
func (s *Semaphore) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return s.acquire(ctx, "lock", key, (*slots.Group).Lock, opts)
}

// TryLock makes one attempt to acquire a permit of key. The lease is a [*Permit]. If no permit is free, or if others
// wait for one, the error matches locker.ErrHeld. It may then be a *locker.HeldError that describes one of the holders
// of permits, or the caller that waits in front of the others.
//
// On stores without Groups of backend.Capabilities, others that wait do not count if a quarter of the permits is free
// beside what is wanted. If the store cannot acquire a free permit in one step, TryLock asks for one permit after the
// other, in random order, and for several at a time after the first three. A step is about 64 permits at most, and if
// it finds too few of them free, TryLock does the same for all. It may then take a permit that has just been returned
// although others wait, and of several calls with a weight, all may fail because they have taken permits from each
// other.
func (s *Semaphore) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return s.acquire(ctx, "trylock", key, (*slots.Group).TryLock, opts)
}

// Locks returns the names that key has in the store, for an inspect.Inspector and for operators. On stores with Groups
// of backend.Capabilities, it is the name of the group: Inspect shows all Holders, and ForceRelease is about the owner
// that it is given. On others, they are the names of the locks that stand for the permits, by their numbers, and at the
// end that of the lock which callers wait for.
func (s *Semaphore) Locks(key string) []string {
	if s.whole.IsKnown() {
		return []string{groupName(key)}
	}
	g := s.group(key)
	return append(g.Slots, g.Gates...)
}

// Inspect implements inspect.Inspector: it returns an error, because a key has several holders. Inspect each of Locks
// with the Locker below.
func (s *Semaphore) Inspect(_ context.Context, key string) (inspect.Inspection, error) {
	return inspect.Inspection{State: inspect.Unknown}, &locker.Error{Op: "inspect", Key: key, Err: errSeveral}
}

// ForceRelease implements inspect.Inspector as Inspect does.
func (s *Semaphore) ForceRelease(_ context.Context, key, _ string) (inspect.Inspection, error) {
	return inspect.Inspection{State: inspect.Unknown}, &locker.Error{Op: "release", Key: key, Err: errSeveral}
}

var errSeveral = fmt.Errorf("the key of a semaphore has several holders: inspect or release one of its Locks: %w",
	errors.ErrUnsupported)

// acquire acquires permits of key: one as a lock, if the store has groups, or else by a method of a Group.
func (s *Semaphore) acquire(
	ctx context.Context, op, key string,
	get func(g *slots.Group, ctx context.Context, n int, opts []locker.Option) (*slots.Held, error),
	opts []locker.Option,
) (locker.Lease, error) {
	if err := s.validate(key); err != nil {
		return nil, &locker.Error{Op: op, Key: key, Err: err}
	}
	if !s.whole.IsApart() {
		e := &several.Entry{Name: groupName(key), Wants: backend.Group{N: s.n, Weight: s.weight}}
		lease, err := s.whole.Acquire(ctx, op, key, e, opts, s.explain)
		if err == nil {
			fence := lease.Fence()
			numbers, _ := e.Of(fence)
			return &Permit{Lease: lease, key: key, fence: fence, numbers: numbers, settle: func() {}}, nil
		}
		if !errors.Is(err, slots.ErrApart) {
			return nil, err
		}
	}
	held, err := get(s.group(key), several.WithKind(several.ForLocks(ctx), "permit"), s.weight, opts)
	if err != nil {
		return nil, err
	}
	p := &Permit{Lease: held.Leases[0], key: key, fence: held.Fence(), numbers: held.Slots, settle: held.Wait}
	if len(held.Leases) > 1 {
		p.Lease = locker.NewAllLease(held.Leases...)
	}
	return p, nil
}

func groupName(key string) string { return slots.Name(key, several.PermitsOf) }

func (s *Semaphore) group(key string) *slots.Group {
	return &slots.Group{
		Locker: s.locker, Key: key, Slots: slots.Names(key, s.n), Gates: []string{slots.Name(key, "gate")},
		Spare: max(1, s.n/4), Explain: s.explain,
	}
}

// explain returns the text of an error: held describes a holder of a permit, or the first waiter, at the gate if there
// is one.
func (s *Semaphore) explain(gate bool, held *locker.HeldError) string {
	switch {
	case gate && s.n == 1:
		return slots.First("others wait for the permit", held)
	case gate:
		return slots.First(fmt.Sprintf("others wait for some of the %d permits", s.n), held)
	case s.n == 1:
		return held.Error()
	case s.weight == 1:
		return fmt.Sprintf("all %d permits are held, one of them %s", s.n, strings.TrimPrefix(held.Error(), "held "))
	default:
		return fmt.Sprintf("fewer than %d of the %d permits are free, one is %v", s.weight, s.n, held)
	}
}

func (s *Semaphore) validate(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: the key is empty", locker.ErrInvalid)
	case s.n < 1 || s.n > MaxPermits:
		return fmt.Errorf("%w: %d permits are not between 1 and %d", locker.ErrInvalid, s.n, MaxPermits)
	case s.weight < 1 || s.weight > s.n:
		return fmt.Errorf("%w: the weight %d is not between 1 and the %d permits", locker.ErrInvalid, s.weight, s.n)
	}
	return nil
}

// Permit is the lease of one or more permits. Use locker.LeaseAs to find it behind middleware:
//
//	permit, ok := locker.LeaseAs[*semaphore.Permit](lease)
type Permit struct {
	locker.Lease // of the permits, or of the locks that stand for them
	key          string
	fence        uint64
	numbers      []int
	settle       func() // waits for what the call has left; see slots.Held.Wait
}

// Key returns the key, as it was passed to Lock.
func (p *Permit) Key() string { return p.key }

// Slot returns the number of the permit, from 0. No other holder has the same number at the same time. With a weight,
// it is the first of Slots.
func (p *Permit) Slot() int { return p.numbers[0] }

// Slots returns the numbers of all permits of the lease, in ascending order.
func (p *Permit) Slots() []int { return slices.Clone(p.numbers) }

// Fence returns the fencing token of the permit, the greatest one if there are several. It is greater than those of all
// earlier holders of the same slot. Holders of different slots overlap, so a resource that all of them use must not
// compare their tokens: keep the greatest one for each slot.
func (p *Permit) Fence() uint64 { return p.fence }

// Overlaps returns true: others hold the key at the same time, so package fence refuses the permit.
func (p *Permit) Overlaps() bool { return true }

// Unwrap lets locker.Verify find the lease of the Locker below.
func (p *Permit) Unwrap() locker.Lease { return p.Lease }

// Extend extends the permit; see locker.Lease.
func (p *Permit) Extend(ctx context.Context, opts ...locker.Option) error {
	return p.named(p.Lease.Extend(ctx, opts...))
}

// Unlock returns the permit; see locker.Lease. If a hook or a middleware has panicked while the gate was released in
// the background, Unlock then panics with the same value.
func (p *Permit) Unlock(ctx context.Context) error {
	defer p.settle()
	return p.named(p.Lease.Unlock(ctx))
}

// Verify asks the store about all permits; see locker.Verify.
func (p *Permit) Verify(ctx context.Context) error { return p.named(locker.Verify(ctx, p.Lease)) }

// Bind binds to to all permits; see locker.Bind.
func (p *Permit) Bind(ctx context.Context, to any) error {
	return p.named(locker.Bind(ctx, p.Lease, to))
}

// Err returns nil while all permits are held; see locker.Lease.
func (p *Permit) Err() error { return p.named(p.Lease.Err()) }

// named returns err with the key of the caller, in place of the names of the locks that stand for its permits. Of
// several errors, it says each kind once.
func (p *Permit) named(err error) error { return slots.Named(p.key, err) }
