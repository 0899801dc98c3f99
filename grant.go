package locker

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/ending"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/internal/core/validity"
)

// grant is a lock that the store has granted to a Client, until it is released or lost. It has what the store knows of:
// the owner value, the end of the TTL, renewals and the release. Its leases are what callers know of. A grant begins
// with one lease. If it has more tokens than one, it may be handed over to other callers of the Client, each of which
// gets a lease of its own, one after the other; see keyQueue.handOver.
//
// A grant needs no goroutine: a timer ends it, and the schedule of the Client renews it.
type grant struct {
	client  *Client
	req     backend.Request
	queue   *keyQueue // has the callers that it may be handed over to; nil if it is not handed over
	renews  bool
	start   time.Time     // when the acquiring request was sent
	maxHold time.Duration // the grant ends shortly before start plus maxHold; 0: no limit
	minHold time.Duration // the lock stays taken until start plus minHold

	// The position in the schedule, guarded by the mu of the Client.
	due   time.Time     // when the next renewal is due
	pos   int           // index in the heap; -1 if not in it
	slack time.Duration // the next renewal may be sent that much earlier

	first lease // is allocated together with the grant

	mu      sync.Mutex    // guards the following, and the leases
	lease   *lease        // has the lock now; once it has ended, the grant has ended
	ttl     time.Duration // of the next renewal; see lease.Extend
	longest time.Duration // of all TTLs that the lock may have in the store
	until   time.Time
	expiry  *time.Timer // ends the lease shortly before until, or before the end of maxHold
	failed  error       // of the last renewal; nil if it succeeded
	shares  bool        // each extension makes the lock a shared one; see several.Extension
	deafen  func()      // ends the notification of a loss; nil if there is none

	// asking has the cancel functions of the requests in progress, except releases, and what ends heed. They are called
	// when the lease ends. That of the renewal, if there is one in progress, is called when the grant ends.
	asking  []*context.CancelFunc
	renewal *context.CancelFunc

	// The state of the release; see lease.release.
	releasing bool          // a release is in progress
	settled   chan struct{} // closed when that release has ended; nil unless another Unlock waits for it
	sent      bool          // a release was sent and its outcome is unknown
	released  bool          // the store has confirmed that the lock no longer belongs to the grant
	owners    []string      // of exports that were sent: the lock has one of these owner values if it was exported
}

// margin returns how long before the end of d a lease closes its done channel. A timer that fires late then still
// closes the channel in time. The delay of a timer does not depend on its duration: it is some milliseconds, or some
// tens of milliseconds on a busy machine. A margin of more than 50 ms would only shorten the lease. For a short d, the
// margin is a small part of d.
func margin(d time.Duration) time.Duration {
	return min(d/100, 50*time.Millisecond) + time.Millisecond
}

// end returns when the grant will end if it is not extended, and for which reason. Call with mu held.
func (g *grant) end() (time.Time, LostReason) {
	expiry := g.until.Add(-margin(g.ttl))
	if limit := g.start.Add(g.maxHold - margin(g.maxHold)); g.maxHold > 0 && !expiry.Before(limit) {
		return limit, LostMaxHold
	}
	return expiry, LostExpired
}

// finish ends the lease l, and the grant with it, if its time is over, if Close has begun, or for the given reason if
// that is not nil. It returns the reason for which the lease has ended, now or before, or nil if it is still held. If l
// is nil, finish is about the lease that has the lock now.
func (g *grant) finish(l *lease, reason error) error {
	l, _ = g.conclude(l, reason, 0)
	return g.settle(l)
}

// conclude is what finish does first: it closes Done, and reports whether it has ended the lease, which it returns. The
// time of the lease counts as over that much early.
func (g *grant) conclude(l *lease, reason error, early time.Duration) (of *lease, ends bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l == nil {
		l = g.lease
	}
	if l.err == nil {
		if end, why := g.end(); left(end) <= early {
			lost := &LostError{Reason: why}
			if why == LostExpired {
				lost.Err = g.failed
			}
			reason = lost
		}
		if reason == nil && g.client.closes() {
			reason = &LostError{Reason: LostClosed}
		}
		if ends = reason != nil; ends {
			l.close(reason)
			l.unsettled = true
		}
	}
	return l, ends
}

// settle is the rest of finish, which the first caller does after the end of the lease. So Unlock of a lease that is
// lost comes after the hook.
func (g *grant) settle(l *lease) error {
	g.mu.Lock()
	err, trace, ends := l.err, l.trace, l.unsettled
	l.unsettled = false
	var asking []*context.CancelFunc
	var deafen func()
	if ends {
		g.client.forget(g)
		asking, deafen = g.asking, g.deafen
		g.asking, g.deafen = nil, nil
	}
	g.mu.Unlock()
	// Nothing that is not of this package is called with mu held. Hooks may call every method of the lease. A cancel
	// function asks the context of its caller, and that of Do asks the lease.
	for _, cancel := range asking {
		(*cancel)()
	}
	if deafen != nil {
		deafen()
	}
	if ends {
		if g.queue != nil {
			g.queue.over(g)
		}
		if lost, ok := err.(*LostError); ok && trace != nil && trace.Lost != nil { //nolint:errorlint // set above
			trace.Lost(lost)
		}
	}
	return err
}

// pass ends the lease l, and returns a new one for another caller. One of a call for several locks is counted in the
// attempts of the Client. It returns nil if the grant cannot be handed over any more: its time is
// over, Drain or Close has begun, or the last renewal has failed, of which the next caller would not hear. It has to be
// released then. Otherwise the functions in asking are to be called, which cancel the requests of l.
func (g *grant) pass(l *lease, to *caller) (next *lease, asking []*context.CancelFunc) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if end, _ := g.end(); l.err != nil || left(end) <= 0 || g.failed != nil || g.client.open.Err() != nil {
		return nil, nil
	}
	l.close(ErrUnlocked)
	l.passed = true
	g.lease = &lease{grant: g, fence: l.fence + 1, trace: to.trace, from: to.from}
	g.lease.counted.Store(to.part)
	asking, g.asking = g.asking, nil
	if i := slices.Index(asking, g.renewal); i >= 0 {
		asking = slices.Delete(asking, i, i+1)
		g.asking = []*context.CancelFunc{g.renewal}
	}
	return g.lease, asking
}

// check asks the store whether the lock is still held, once the grant cannot be handed over any more. The lease that
// has it then began without a question to the store, and may be held for long. If the lock was lost before that, its
// holder should not have to wait for the next renewal to learn of it.
func (g *grant) check() {
	v, ok := g.client.backend.(backend.Verifier)
	g.mu.Lock()
	l, ttl := g.lease, g.ttl
	g.mu.Unlock()
	if !ok || l == &g.first || !g.client.join() {
		return
	}
	defer g.client.background.Done()
	ctx, cancel := context.WithTimeout(context.Background(), min(ttl/boundPart, maxRenewal))
	defer cancel()
	_ = g.ask(ctx, l, &cancel, v.Verify) // which ends the grant if the lock is lost
}

// over reports whether the grant has ended.
func (g *grant) over() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lease.err != nil
}

// rearm ends the grant if its time is over, and otherwise sets its timer again. It is called by the timer, which fires
// too early if the wall clock was ahead when it was set and has been set back since. It is also called when the wall
// clock has gained on the monotonic clock.
func (g *grant) rearm() {
	l, ends := g.conclude(nil, nil, g.client.early(g.currentTTL()))
	if ends {
		runtime.Gosched() // the leases that end at the same time are told first
	}
	if g.settle(l) != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lease.err == nil {
		g.setExpiry()
	}
}

// setExpiry sets the timer to the end of the grant. Call with mu held, while the grant has not ended.
func (g *grant) setExpiry() {
	end, _ := g.end()
	g.expiry.Reset(max(0, left(end)-g.client.early(g.ttl)))
}

// listen ends the grant as soon as n reports that it is lost.
func (g *grant) listen(n backend.LossNotifier) {
	stop := n.NotifyLoss(g.req, func(err error) { _ = g.finish(nil, &LostError{Reason: reasonOf(err)}) })
	g.mu.Lock()
	ended := g.lease.err != nil
	if !ended {
		g.deafen = stop
	}
	g.mu.Unlock()
	if ended {
		stop()
	}
}

// ask sends a request to the backend, for l or, if l is nil, a renewal. cancel must end ctx. It is called when the
// lease or, for a renewal, the grant ends. If the answer is that the lock is no longer held, ask ends the grant,
// whichever lease has the lock by now: the owner value is the same, and no release was sent.
func (g *grant) ask(
	ctx context.Context, l *lease, cancel *context.CancelFunc,
	request func(ctx context.Context, req backend.Request) error,
) error {
	if err := g.finish(l, nil); err != nil {
		return err
	}
	if err := ending.Of(ctx); err != nil {
		return err
	}
	g.mu.Lock()
	if err := g.ended(l); err != nil {
		g.mu.Unlock()
		return err
	}
	g.asking = append(g.asking, cancel)
	if l == nil {
		g.renewal = cancel
	}
	g.mu.Unlock()
	err := fromBackend(request(ctx, g.req))
	g.mu.Lock()
	if i := slices.Index(g.asking, cancel); i >= 0 { // otherwise the lease has ended
		g.asking = slices.Delete(g.asking, i, i+1)
	}
	if l == nil {
		g.renewal = nil
	}
	g.mu.Unlock()
	if errors.Is(err, ErrNotHeld) {
		// This has no effect if the grant was released meanwhile. The lock is then missing because Unlock deleted it.
		lost := g.finish(nil, &LostError{Reason: reasonOf(err)})
		if l != nil {
			return g.finish(l, nil)
		}
		return lost
	}
	return err
}

// ended returns the reason for which l has ended or, if l is nil, the grant. Call with mu held.
func (g *grant) ended(l *lease) error {
	if l == nil {
		l = g.lease
	}
	return l.err
}

// extend makes one attempt to extend the grant by ttl from now, for l or, if l is nil, as a renewal. cancel is as in
// ask.
func (g *grant) extend(ctx context.Context, l *lease, cancel *context.CancelFunc, ttl time.Duration) error {
	x := several.ExtensionFrom(ctx)
	if g.req.Group == nil || g.req.Group.Kind == backend.Permit {
		x = nil // this is none of the locks of a group
	}
	g.mu.Lock()
	if g.ended(l) == nil {
		g.longest = max(g.longest, ttl) // the store may set it although no answer comes
		if x != nil {
			x.Hear()
			if x.Share {
				g.shares, g.lease.wanted = true, nil // others are in the way of a shared lock
			}
		}
	}
	wanted := g.lease.listener()
	group := g.group()
	g.mu.Unlock()
	start := time.Now()
	err := g.ask(ctx, l, cancel, func(ctx context.Context, req backend.Request) error {
		req.TTL, req.Wanted, req.Group = ttl, wanted, group
		if x != nil {
			req.Wanted = func() {
				x.Want()
				if wanted != nil {
					wanted()
				}
			}
		}
		return g.client.backend.Extend(ctx, req)
	})
	if err != nil {
		return err
	}
	return g.prolong(l, start, ttl)
}

// group returns what an extension says of the group of the lock, if it is of one. What its holder shares from now on
// stays as it is for as long as MinHold demands. Call with mu held.
func (g *grant) group() *backend.Group {
	if !g.shares || time.Since(g.start) < g.minHold {
		return g.req.Group
	}
	shared := *g.req.Group
	shared.Kind = backend.Shared
	return &shared
}

// prolong moves the end of the grant after a successful extension by ttl that began at start. If the lease, or for a
// renewal the grant, has ended meanwhile, it stays ended, because callers have already seen that done was closed.
func (g *grant) prolong(l *lease, start time.Time, ttl time.Duration) error {
	if err := g.finish(l, nil); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.ended(l); err != nil {
		return err
	}
	g.failed = nil
	if until := validity.Until(start, ttl); until.After(g.until) {
		g.until = until
		g.setExpiry()
	}
	return nil
}

func (g *grant) currentTTL() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ttl
}

// adopt makes ttl the TTL of the renewals, after an extension by l that began at start.
func (g *grant) adopt(start time.Time, ttl time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ttl = ttl
	if g.lease.err == nil {
		g.setExpiry()
		g.client.retime(g, start, ttl)
	}
}

// held returns the request of the lock as the store may have it.
func (g *grant) held() backend.Request {
	g.mu.Lock()
	defer g.mu.Unlock()
	req := g.req
	req.TTL = g.longest
	return req
}

// beginRelease waits until no other call is releasing the lock. If it returns nil, the caller must call endRelease.
// It returns ErrUnlocked if an earlier release has succeeded, or if l was passed to another caller.
func (g *grant) beginRelease(ctx context.Context, l *lease) error {
	for waited := false; ; waited = true {
		g.mu.Lock()
		switch {
		case g.released || l.passed:
			g.mu.Unlock()
			return ErrUnlocked
		case waited && ctx.Err() != nil:
			g.mu.Unlock()
			return errUnlocking
		case !g.releasing:
			g.releasing = true
			g.mu.Unlock()
			return nil
		}
		if g.settled == nil {
			g.settled = make(chan struct{})
		}
		settled := g.settled
		g.mu.Unlock()
		select {
		case <-settled:
		case <-ctx.Done():
		}
	}
}

// mayBelong records that an export is sent, which makes owner the owner value of the lock.
func (g *grant) mayBelong(owner string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(g.owners, owner) {
		g.owners = append(g.owners, owner)
	}
}

// mayBelongTo returns the owner values that the lock may have if it does not have that of the grant. A release has to
// try them in that order: an export from a value that the lock no longer has finds nothing when it arrives.
func (g *grant) mayBelongTo() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.owners
}

// belongsToAnother reports whether l was passed to another caller, so that the lock is no longer for l to release. l
// has ended.
func (g *grant) belongsToAnother(l *lease) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return l.passed
}

// endRelease records the outcome of a release and lets the next call release. It reports whether an earlier release was
// not answered.
func (g *grant) endRelease(answered bool) (unanswered bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	unanswered = g.sent
	if answered {
		g.released = true
	} else {
		g.sent = true
	}
	g.releasing = false
	if g.settled != nil {
		close(g.settled)
		g.settled = nil
	}
	return unanswered
}

// lost returns how the grant was lost, given the error notHeld of its release. It returns nil if it may not have been
// lost.
func (g *grant) lost(notHeld error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case errors.Is(g.lease.err, ErrLost):
		return g.lease.err
	case left(g.until) <= 0:
		return &LostError{Reason: LostExpired, Err: g.failed}
	}
	var e *NotHeldError
	ok := errors.As(notHeld, &e)
	if ok && e.Reason == LostGone {
		return nil
	}
	return &LostError{Reason: reasonOf(notHeld)}
}
