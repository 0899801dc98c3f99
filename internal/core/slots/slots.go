// Package slots acquires some of the locks that stand for the places of a key, on any Locker. Packages semaphore and
// rwlock are made of it.
//
// A place is an ordinary lock, so exclusion needs nothing else. A caller that finds no free place waits for the gates,
// which are locks, too. Only the holder of the gates waits for places, and those that do not wait yield to it. So the
// order of arrival is that of the gate.
package slots

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/core/ending"
	"github.com/golocker/locker/internal/core/label"
	"github.com/golocker/locker/internal/core/placename"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/lockertrace"
)

// Group is the locks of one key.
type Group struct {
	Locker locker.Locker
	Key    string   // as the callers know it
	Slots  []string // the names of the locks that stand for the places, by number
	Gates  []string // the names of the gates, in the order in which they are acquired

	// Kept is what the caller has of the key already, or nil. A call fails when it is lost, with an error that matches
	// locker.ErrUnavailable.
	Kept locker.Lease

	// Together says that some callers need all places. So they are mostly held or free together: a caller that needs one
	// waits for a few of them, and for the others only after a while. One that has a place must not wait for another.
	Together bool

	// Spare is how many places have to be free beside those that a caller wants, for it not to wait behind others. 0 means
	// that it always does.
	Spare int

	// Enough is nil, or reports to Lock, which has got the gates then, that the caller needs no place any more. Lock
	// returns none if so, also if it has lost a gate by then. Enough is not called again: what the caller has instead may
	// be what those wait for that have the gates now.
	Enough func() bool

	// Explain returns what it means for a call that a place, or a gate, was found held. The text of an error says that
	// instead. If Explain is nil, the text names the holder of that lock.
	Explain func(gate bool, held *locker.HeldError) string
}

// Held is what a call has acquired.
type Held struct {
	Leases []locker.Lease
	Slots  []int // their numbers, in the order of Leases

	// Settled is closed when the gates are released and all other places are left. That goes on after the call has
	// returned, for a round trip or until the releases time out.
	Settled <-chan struct{}

	panicked <-chan any // receives what a hook or a middleware has panicked with by then
}

// settleBound is how long Wait waits. A release ends within a second, but a hook that it runs may call Wait.
const settleBound = 2 * time.Second

// Wait waits for Settled. If a hook or a middleware of the program has panicked in the background, it panics with the
// same value, once: there was no other caller.
func (h *Held) Wait() {
	select {
	case <-h.Settled: // nearly always
	default:
		bound := time.NewTimer(settleBound)
		defer bound.Stop()
		select {
		case <-h.Settled:
		case <-bound.C:
		}
	}
	select {
	case p := <-h.panicked:
		panic(p)
	default:
	}
}

// Name returns the name of a lock that belongs to key; see placename.Of.
func Name(key, what string) string { return placename.Of(key, what) }

// Names returns the names of n locks that belong to key, numbered from 0.
func Names(key string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = Name(key, strconv.Itoa(i))
	}
	return names
}

// maxStep is how many locks a step is about at most. Stores acquire up to 64 locks in one step.
const maxStep = 64

// Lock acquires n places. It waits until ctx ends. The error is of type *locker.Error.
func (g *Group) Lock(ctx context.Context, n int, opts []locker.Option) (*Held, error) {
	call := several.CallFrom(ctx)
	if call == nil {
		call = new(several.Call)
		ctx = call.With(ctx)
		defer call.End()
	}
	ctx = Waits(g.Before(ctx, n), call)
	for tries := 0; ; tries++ {
		var held *Held
		err := errors.ErrUnsupported
		if tries == 0 && g.Enough == nil { // later, it would cost a request more to find out that the store still fails
			held, err = g.first(ctx, n, opts)
		}
		switch {
		case err == nil:
			return held, nil
		case errors.Is(err, locker.ErrHeld):
			if ending.Of(ctx) != nil {
				return nil, g.failed(ctx, err)
			}
			call.Wait()
		case !errors.Is(err, errors.ErrUnsupported):
			if waits, _ := call.Seen(false, 0); !waits || !faulty(ctx, err) {
				return nil, g.failed(ctx, err)
			}
		}
		held, err = g.search(ctx, n, func(s *search) error { return s.wait(opts) })
		lost := (*lostError)(nil)
		if !errors.As(err, &lost) || g.keptLost() != nil {
			return held, g.failed(ctx, err)
		}
		call.Wait()
		if !lost.since.IsZero() {
			call.Failing(lost.since)
		}
		select {
		case <-time.After(anewDelay(tries)):
		case <-ctx.Done():
		}
	}
}

// Before returns a context for the locks of a call that waits for the gates and for n places. They are refused with
// locker.ErrReentrant if the caller would wait for itself; see several.Gates.
func (g *Group) Before(ctx context.Context, n int) context.Context {
	if _, ok := locker.LeaseFrom(ctx); !ok {
		return ctx
	}
	spare := len(g.Slots) - n
	if g.Together {
		spare = 0
	}
	return (&several.Gates{Names: g.Gates, Places: g.Slots, Spare: spare}).With(ctx)
}

// Waits returns a context for the locks of call. Once one of them waits, call knows that it does.
func Waits(ctx context.Context, call *several.Call) context.Context {
	return lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { call.Wait() }})
}

// TryLock makes one attempt to acquire n places. The error is of type *locker.Error.
func (g *Group) TryLock(ctx context.Context, n int, opts []locker.Option) (*Held, error) {
	if several.CallFrom(ctx) == nil {
		call := new(several.Call)
		ctx = call.With(ctx)
		defer call.End()
	}
	held, err := g.first(ctx, n, opts)
	if errors.Is(err, errors.ErrUnsupported) {
		held, err = g.search(ctx, n, func(s *search) error { return s.try(opts) })
	}
	return held, g.about("trylock", err)
}

// failed returns err as the error of Lock. If it is about a lock that is held, and ctx has ended since the answer came,
// it matches the error of ctx, too.
func (g *Group) failed(ctx context.Context, err error) error {
	end := ending.Of(ctx)
	if end == nil || !errors.Is(err, locker.ErrHeld) || errors.Is(err, end) {
		return g.about("lock", err)
	}
	of := &locker.Error{Err: err}
	_ = errors.As(err, &of)
	why := fmt.Errorf("%w: %w", ending.Why(ctx, end), of.Err)
	return g.about("lock", &locker.Error{Key: of.Key, Err: why})
}

// about returns err as the error of a call.
func (g *Group) about(op string, err error) error {
	if err == nil {
		return nil
	}
	return About(op, g.Key, err, func(of string, held *locker.HeldError) string {
		if g.Explain == nil {
			return held.Error()
		}
		return g.Explain(slices.Contains(g.Gates, of), held)
	})
}

// About returns err as the error of a call that is about key. explain returns what it means that the lock with the name
// of is held, which err may say.
func About(op, key string, err error, explain func(of string, held *locker.HeldError) string) error {
	var of *locker.Error
	if errors.As(err, &of) {
		if err = of.Err; errors.Is(err, locker.ErrHeld) {
			held := &locker.HeldError{} // if nothing is known of the holder
			_ = errors.As(err, &held)
			err = &explainedError{err, strings.Replace(err.Error(), held.Error(), explain(of.Key, held), 1)}
		}
	}
	return &locker.Error{Op: op, Key: key, Err: err}
}

// First adds to a text the label of the first waiter, which has the gate and is described by held. Without a label, the
// text stays as it is.
func First(what string, held *locker.HeldError) string {
	if held.Label == "" {
		return what
	}
	return what + ", the first of them is " + label.Show(held.Label)
}

// explainedError is err with another text.
type explainedError struct {
	err  error
	text string
}

func (e *explainedError) Error() string { return e.text }
func (e *explainedError) Unwrap() error { return e.err }

// lostError means that a lock was lost before all others were acquired.
type lostError struct {
	since time.Time // when the store began to fail, if that is why it was lost
}

// lostOf returns the error for the loss of l. A lease that has expired was not renewed when a third of its TTL was
// over.
func lostOf(l locker.Lease) *lostError {
	e := new(lostError)
	lost, ttl := (*locker.LostError)(nil), time.Duration(0)
	if of, ok := locker.LeaseAs[interface{ TTL() time.Duration }](l); ok {
		ttl = of.TTL()
	}
	if errors.As(l.Err(), &lost) && lost.Reason == locker.LostExpired && lost.Err != nil && ttl > 0 {
		e.since = l.Until().Add(-ttl * 2 / 3)
	}
	return e
}

func (e *lostError) Error() string {
	return "a lock was lost while others were acquired"
}

func (e *lostError) Is(target error) bool { return target == locker.ErrUnavailable }

// anewDelay returns the pause before Lock begins anew for the n-th time, from 0, as LockAll does.
func anewDelay(n int) time.Duration {
	d := min(time.Second, 2*time.Millisecond<<min(n, 10))
	return d/2 + rand.N(d/2)
}

// first acquires n places in one step, unless somebody waits.
func (g *Group) first(ctx context.Context, n int, opts []locker.Option) (*Held, error) {
	held, err := g.step(ctx, n, g.Gates, opts)
	if err != nil || g.keptLost() == nil {
		return held, err
	}
	Release(ctx, held.Leases...)
	return nil, g.keptLost()
}

// Taken reports whether somebody has the gate, or does not answer that nobody has it. The caller has the given place.
// So the step that asks for this place, behind the gate, acquires nothing.
func (g *Group) Taken(ctx context.Context, gate string, place int) bool {
	own := g.Slots[place]
	ask := locker.Many{Keys: []string{own}, N: 1, Gates: []string{gate}}
	got, err := locker.TryLockMany(ctx, g.Locker, ask, slotOptions(nil)...)
	var of *locker.Error
	switch {
	case err == nil: // the place was lost
		Release(ctx, got...)
		return true
	case errors.Is(err, locker.ErrHeld):
		return !errors.As(err, &of) || of.Key != own
	case !errors.Is(err, errors.ErrUnsupported):
		return true
	}
	l, err := g.Locker.TryLock(ctx, gate)
	if err != nil {
		return true
	}
	Release(ctx, l)
	return false
}

// keptLost returns an error if the caller has lost what it has of the key.
func (g *Group) keptLost() error {
	if g.Kept != nil && g.Kept.Err() != nil {
		return lostOf(g.Kept)
	}
	return nil
}

// step acquires n places in one step. The error matches errors.ErrUnsupported if that is not possible.
func (g *Group) step(ctx context.Context, n int, gates []string, opts []locker.Option) (*Held, error) {
	if len(g.Slots) > maxStep && n > maxStep {
		return nil, errors.ErrUnsupported
	}
	numbers := make(map[string]int, len(g.Slots))
	keys := g.Slots
	if len(keys) > maxStep {
		first := rand.N(len(keys) - maxStep + 1)
		keys = keys[first : first+maxStep]
	}
	keys = slices.Sorted(slices.Values(keys))
	for i, name := range g.Slots {
		numbers[name] = i
	}
	many := locker.Many{Keys: keys, N: n, Gates: gates, Spare: g.spare(keys)}
	leases, err := locker.TryLockMany(ctx, g.Locker, many, slotOptions(opts)...)
	if err != nil {
		var of *locker.Error
		if len(keys) < len(g.Slots) && errors.Is(err, locker.ErrHeld) && ending.Of(ctx) == nil && errors.As(err, &of) &&
			!slices.Contains(gates, of.Key) { // other places may be free
			return nil, errors.ErrUnsupported
		}
		return nil, err
	}
	held := &Held{Settled: settled}
	for i, l := range leases {
		if l != nil {
			held.add(numbers[keys[i]], l)
		}
	}
	held.sort()
	return held, nil
}

// spare returns Spare for a step that is about keys only.
func (g *Group) spare(keys []string) int {
	return (g.Spare*len(keys) + len(g.Slots) - 1) / len(g.Slots)
}

var settled = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (h *Held) add(slot int, l locker.Lease) {
	h.Leases, h.Slots = append(h.Leases, l), append(h.Slots, slot)
}

// sort sorts what is held by the numbers of the slots.
func (h *Held) sort() {
	sorted := &Held{}
	for _, i := range slices.Sorted(slices.Values(h.Slots)) {
		sorted.add(i, h.Leases[slices.Index(h.Slots, i)])
	}
	h.Leases, h.Slots = sorted.Leases, sorted.Slots
}

// slotOptions returns the options of the locks that stand for places. They are not handed over to callers that wait for
// the same one: the order of arrival is that of the gate.
func slotOptions(opts []locker.Option) []locker.Option {
	return append(slices.Clip(opts), locker.NoLocalHandover())
}

// Fence returns the greatest fencing token of the leases.
func (h *Held) Fence() uint64 {
	var fence uint64
	for _, l := range h.Leases {
		fence = max(fence, l.Fence())
	}
	return fence
}
