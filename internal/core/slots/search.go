package slots

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/core/ending"
	"github.com/golocker/locker/internal/core/several"
)

// singles is how many places are asked for one after the other before more are asked for at once. Places that are
// acquired at once and are not needed are given back, and other callers may find them held meanwhile.
const singles = 3

// few is how many places of a Group that is Together a caller waits for at first, and patience for how long. To wait
// for all of them costs a request each, and all but one are given back if they become free together.
const (
	few      = 2
	patience = 100 * time.Millisecond
)

// search looks for free places by a call of its Locker for each. If it ends without as many as it wants, or a lock is
// lost before it has them, it gives everything back.
type search struct {
	group  *Group
	caller context.Context
	n      int // how many places are wanted; 0 once the Group has Enough

	ctx context.Context // of the calls: ends when the search ends, or a lock is lost
	end context.CancelCauseFunc

	held    *Held
	partial several.Partial // the places that were waited for, if several are wanted
	gates   []locker.Lease
	refused error // the first answer that a place is held

	answers  chan answer
	pending  int // calls that have not answered
	watching sync.WaitGroup
}

// answer is that of one call.
type answer struct {
	slot     int
	lease    locker.Lease
	err      error
	panicked any
}

// search makes a search for n places, which run carries out.
func (g *Group) search(ctx context.Context, n int, run func(s *search) error) (held *Held, err error) {
	s := &search{group: g, caller: ctx, n: n, held: &Held{Settled: settled}, answers: make(chan answer, len(g.Slots))}
	s.ctx, s.end = context.WithCancelCause(ctx)
	defer func() { // also if a hook or a middleware of the program panics
		s.stop()
		if held == nil {
			throw(s.settle(several.Undo(ctx), s.held.Leases))
		}
	}()
	if g.Kept != nil {
		s.watch(g.Kept)
	}
	if err := run(s); err != nil {
		return nil, err
	}
	if n > 1 {
		if err := s.begin(); err != nil {
			return nil, err
		}
	}
	lost := context.Cause(s.ctx)
	s.stop()
	if s.n > 0 { // otherwise, the caller does not need the gates any more
		if err := s.lost(); err != nil {
			return nil, err
		}
		if lost != nil && ending.Of(ctx) == nil {
			return nil, lost
		}
	}
	if len(s.gates) > 0 {
		s.settleLater()
	} else { // the next TryLock would find held what this one gives back
		throw(s.settle(ctx, nil))
	}
	s.held.sort()
	return s.held, nil
}

// begin makes the leases what the caller has asked for, because it has all of them.
func (s *search) begin() error {
	asked, begins := time.Now(), s.partial.Begins()
	answers := make(chan answer, len(begins))
	for _, begin := range begins {
		go func() {
			a := answer{err: errGoexit}
			defer func() {
				a.panicked = recover()
				answers <- a
			}()
			a.err = begin(s.ctx)
		}()
	}
	var panicked any
	var err error
	for range begins {
		a := <-answers
		if panicked == nil {
			panicked = a.panicked
		}
		if err == nil {
			err = a.err
		}
	}
	throw(panicked)
	if err == nil || errors.Is(err, locker.ErrInvalid) { // to begin anew would change nothing
		return err
	}
	lost := new(lostError)
	_ = errors.As(s.lost(), &lost)
	if lost.since.IsZero() && faulty(s.ctx, err) {
		lost.since = asked
	}
	return lost
}

// stop ends the calls of the search.
func (s *search) stop() {
	s.end(nil)
	s.watching.Wait()
}

// lost returns an error if a lock is lost that the search has acquired.
func (s *search) lost() error {
	for _, l := range s.held.Leases {
		if l.Err() != nil {
			return lostOf(l)
		}
	}
	for _, l := range s.gates {
		if l.Err() != nil {
			return lostOf(l)
		}
	}
	return s.group.keptLost()
}

// settleLater settles what is left of a search that has succeeded, in the background. The call ends when that has
// ended: until then, Close of a Client waits for the releases.
func (s *search) settleLater() {
	over, panicked := make(chan struct{}), make(chan any, 1)
	s.held.Settled, s.held.panicked = over, panicked
	call := several.CallFrom(s.caller)
	call.Keep()
	go func() {
		defer close(over)
		defer call.End()
		if p := s.settle(context.WithoutCancel(s.caller), nil); p != nil {
			panicked <- p
		}
	}()
}

// settle releases the gates and the leases, and gives back what calls still in progress acquire. It returns what a hook
// or a middleware has panicked with meanwhile, or nil.
func (s *search) settle(ctx context.Context, leases []locker.Lease) (panicked any) {
	undo := several.Undo(ctx)
	var mu sync.Mutex
	note := func(p any) {
		mu.Lock()
		defer mu.Unlock()
		if panicked == nil {
			panicked = p
		}
	}
	var releases sync.WaitGroup
	release := func(ctx context.Context, l locker.Lease) { releases.Go(func() { note(unlock(ctx, l)) }) }
	for _, l := range s.gates {
		release(ctx, l)
	}
	for _, l := range leases {
		release(undo, l)
	}
	for ; s.pending > 0; s.pending-- {
		a := <-s.answers
		note(a.panicked)
		if a.err == nil && a.lease != nil {
			release(undo, a.lease)
		}
	}
	releases.Wait()
	return panicked
}

// unlock releases l. It returns what a middleware or a hook panics with, or nil. A middleware may have panicked before
// it has passed the call on, so the lease that it wraps is released then.
func unlock(ctx context.Context, l locker.Lease) (panicked any) {
	defer func() {
		if panicked = recover(); panicked == nil {
			return
		}
		if of, ok := l.(interface{ Unwrap() locker.Lease }); ok {
			if behind := of.Unwrap(); behind != nil {
				_ = unlock(ctx, behind)
			}
		}
	}()
	_ = l.Unlock(ctx)
	return nil
}

// Release releases leases, which nobody is to have, all at once. If a middleware or a hook panics, Release panics with
// the same value when all are released.
func Release(ctx context.Context, leases ...locker.Lease) {
	s := &search{group: new(Group)}
	throw(s.settle(several.Undo(ctx), leases))
}

// throw panics with p, unless it is nil.
func throw(p any) {
	if p != nil {
		panic(p)
	}
}

// watch ends the search if l is lost.
func (s *search) watch(l locker.Lease) {
	s.watching.Go(func() {
		select {
		case <-l.Done():
			s.end(lostOf(l))
		case <-s.ctx.Done():
		}
	})
}

// try asks for places one by one at first, and for more at once if that is not enough. All of them are answered before
// those that are not needed are given back. A request that ends without an answer is undone late by some stores, and
// its place is in the way of the next call until then.
func (s *search) try(opts []locker.Option) error {
	opts = slotOptions(opts)
	order := rand.Perm(len(s.group.Slots))
	for size := 1 - singles; ; size++ {
		missing := s.n - len(s.held.Slots)
		if missing == 0 {
			return nil
		}
		if missing > len(order) {
			return s.refused
		}
		batch := order[:min(len(order), max(missing, size))]
		order = order[len(batch):]
		if err := s.ask(s.caller, batch, s.group.Locker.TryLock, opts); err != nil {
			return err
		}
	}
}

// wait acquires the gates and waits for places.
func (s *search) wait(opts []locker.Option) error {
	for _, gate := range s.group.Gates {
		// A gate is needed only for the wait. Callers of a Client may hand it over, because its order is that of any Lock.
		l, err := s.group.Locker.Lock(new(several.Partial).With(s.ctx), gate, opts...)
		if err != nil {
			return s.failed(err)
		}
		s.gates = append(s.gates, l)
		s.watch(l)
	}
	if s.group.Enough != nil && s.group.Enough() {
		s.n = 0
		return nil
	}
	ctx := s.ctx
	if s.n > 1 {
		ctx = s.partial.With(ctx)
	}
	asked := time.Now()
	held, err := s.group.step(s.ctx, s.n, nil, opts)
	if faulty(s.ctx, err) {
		several.CallFrom(s.ctx).Failing(asked)
	}
	switch {
	case err == nil:
		s.held = held
		return nil
	case errors.Is(err, errors.ErrUnsupported):
		order := rand.Perm(len(s.group.Slots))
		for i := 0; i < min(singles, len(order)-1) && s.n == 1; i++ {
			err := s.ask(s.ctx, order[i:i+1], s.group.Locker.TryLock, slotOptions(opts))
			if faulty(s.ctx, err) {
				break
			}
			if err != nil || len(s.held.Slots) == 1 {
				return err
			}
		}
	case !errors.Is(err, locker.ErrHeld) && !faulty(s.ctx, err):
		return s.failed(err)
	}
	if err := s.ask(ctx, rand.Perm(len(s.group.Slots)), s.group.Locker.Lock, slotOptions(opts)); err != nil {
		return err
	}
	if len(s.held.Slots) < s.n {
		return s.refused
	}
	return nil
}

// faulty reports whether err is of an attempt that has found the store failing. A Lock for each place decides whether
// to go on then: if the call has waited, it tolerates that for its patience.
func faulty(ctx context.Context, err error) bool {
	return errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, locker.ErrClosed) && ending.Of(ctx) == nil
}

// ask calls acquire for the given places, all at once. It returns when the search has as many as it wants, or cannot
// get them any more.
func (s *search) ask(
	ctx context.Context, places []int,
	acquire func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error),
	opts []locker.Option,
) error {
	begin := func(places []int) {
		for _, i := range places {
			s.pending++
			go func() {
				a := answer{slot: i, err: errGoexit}
				defer func() {
					a.panicked = recover()
					s.answers <- a
				}()
				a.lease, a.err = acquire(ctx, s.group.Slots[i], opts...)
			}()
		}
	}
	var rest <-chan time.Time
	if s.group.Together && s.n == 1 && len(places) > few {
		later := time.NewTimer(patience)
		defer later.Stop()
		rest = later.C
		begin(places[:few])
		places = places[few:]
	} else {
		begin(places)
		places = nil
	}
	for len(s.held.Slots) < s.n && len(s.held.Slots)+s.pending+len(places) >= s.n {
		var a answer
		select {
		case a = <-s.answers:
			s.pending--
		case <-rest:
			begin(places)
			rest, places = nil, nil
			continue
		}
		switch {
		case a.panicked != nil:
			panic(a.panicked)
		case a.err == nil:
			s.held.add(a.slot, a.lease)
			s.watch(a.lease)
		case errors.Is(a.err, locker.ErrHeld) && s.ctx.Err() == nil,
			errors.Is(a.err, locker.ErrReentrant): // the caller itself holds that place
			s.refused = a.err
		default:
			return s.failed(a.err)
		}
	}
	return nil
}

var errGoexit = errors.New("a hook or a middleware has ended the goroutine of the request")

// failed returns the error of a search in which a call has failed with err.
func (s *search) failed(err error) error {
	if over := ending.Of(s.caller); over != nil || errors.Is(err, locker.ErrClosed) {
		return err
	}
	if lost := (*lostError)(nil); errors.As(context.Cause(s.ctx), &lost) {
		return lost
	}
	return err
}
