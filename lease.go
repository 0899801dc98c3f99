package locker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker/internal/ending"
	"github.com/golocker/locker/internal/validity"
	"github.com/golocker/locker/lockertrace"
)

// margin returns how long before the end of d a lease closes its done channel. A timer that fires late then still
// closes the channel in time. The delay of a timer does not depend on its duration: it is some milliseconds, or some
// tens of milliseconds on a busy machine. A margin of more than 50 ms would only shorten the lease. For a short d, the
// margin is a small part of d.
func margin(d time.Duration) time.Duration {
	return min(d/100, 50*time.Millisecond) + time.Millisecond
}

// lease is the Lease of a Client. It needs no goroutine while it is held: a timer ends it, and the schedule of the
// Client renews it.
type lease struct {
	client  *Client
	req     Request
	trace   *lockertrace.Trace // of the context that the lease was acquired with; may be nil
	renews  bool
	start   time.Time     // when the acquiring request was sent
	maxHold time.Duration // the lease ends shortly before start plus maxHold; 0: no limit
	minHold time.Duration // the lock stays taken until start plus minHold

	// The position in the schedule, guarded by the mu of the Client.
	due   time.Time     // when the next renewal is due
	pos   int           // index in the heap; -1 if not in it
	slack time.Duration // the next renewal may be sent that much earlier

	mu      sync.Mutex
	ttl     time.Duration // of the next renewal; see ExtendTTL
	longest time.Duration // of all TTLs that the lock may have in the store
	until   time.Time
	done    chan struct{} // closed when err is set; nil until the first call of Done
	err     error         // why the lease ended; nil while it is held
	ended   time.Time     // when the lease ended
	expiry  *time.Timer   // ends the lease shortly before until, or before the end of maxHold
	failed  error         // of the last renewal; nil if it succeeded
	deafen  func()        // ends the notification of a loss; nil if there is none

	// asking has the cancel functions of the requests in progress, except releases. They are called when the lease ends.
	asking []*context.CancelFunc

	counted atomic.Bool // a taken owns the lease, and it is counted in the attempts of the Client

	// The state of the release; see release.
	releasing bool          // a release is in progress
	settled   chan struct{} // closed when that release has ended; nil unless another Unlock waits for it
	sent      bool          // a release was sent and its outcome is unknown
	released  bool          // the store has confirmed that the lock no longer belongs to the lease
}

// end returns when the lease will end if it is not extended, and for which reason. Call with mu held.
func (l *lease) end() (time.Time, LostReason) {
	expiry := l.until.Add(-margin(l.ttl))
	if limit := l.start.Add(l.maxHold - margin(l.maxHold)); l.maxHold > 0 && !expiry.Before(limit) {
		return limit, LostMaxHold
	}
	return expiry, LostExpired
}

func (l *lease) Key() string   { return l.req.Key }
func (l *lease) Token() string { return l.req.Token }
func (l *lease) Fence() uint64 { return l.req.Fence }

// TTL returns the TTL of the next renewal. Package election looks for it behind middleware, as [Verify] looks for the
// lease.
func (l *lease) TTL() time.Duration { return l.currentTTL() }

func (l *lease) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.err != nil {
			close(l.done)
		}
	}
	return l.done
}

func (l *lease) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	until := l.until
	if l.maxHold > 0 {
		until = earlier(until, l.start.Add(l.maxHold))
	}
	if l.err != nil {
		until = earlier(until, l.ended)
	}
	return until
}

func (l *lease) Err() error { return l.finish(nil) }

// finish ends the lease if its time is over, or for the given reason if that is not nil. It returns the reason for
// which the lease has ended, now or before, or nil if the lease is still held.
func (l *lease) finish(reason error) error {
	var asking []*context.CancelFunc
	var deafen func()
	l.mu.Lock()
	was := l.err
	if was == nil {
		if end, why := l.end(); left(end) <= 0 {
			lost := &LostError{Reason: why}
			if why == LostExpired {
				lost.Err = l.failed
			}
			reason = lost
		}
		if reason != nil {
			l.err, l.ended = reason, time.Now()
			if l.done != nil {
				close(l.done)
			}
			l.client.forget(l)
			asking, deafen = l.asking, l.deafen
			l.asking, l.deafen = nil, nil
		}
	}
	err := l.err
	l.mu.Unlock()
	// Nothing that is not of this package is called with mu held. Hooks may call every method of the lease. A cancel
	// function asks the context of its caller, and that of Do asks the lease.
	for _, cancel := range asking {
		(*cancel)()
	}
	if deafen != nil {
		deafen()
	}
	if was == nil && l.trace != nil && l.trace.Lost != nil {
		if lost, ok := err.(*LostError); ok { //nolint:errorlint // set above
			l.trace.Lost(lost)
		}
	}
	return err
}

// rearm ends the lease if its time is over, and otherwise sets its timer again. It is called by the timer, which fires
// too early if the wall clock was ahead when it was set and has been set back since. It is also called when the wall
// clock has gained on the monotonic clock.
func (l *lease) rearm() {
	if l.Err() != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.setExpiry()
	}
}

// setExpiry sets the timer to the end of the lease. Call with mu held, while the lease has not ended.
func (l *lease) setExpiry() {
	end, _ := l.end()
	l.expiry.Reset(max(0, left(end)))
}

// LossNotifier is an optional interface that may be implemented by a [Backend] that learns when a lock ends. If not,
// the [Client] learns of a loss by the next renewal.
type LossNotifier interface {
	// NotifyLoss calls lost when the store reports that req.Token no longer owns the lock. err matches ErrNotHeld, and is
	// preferably a *NotHeldError. req is the request of an Extend. A report may be late or missing, but never wrong: the
	// Client ends the lease, and does not ask again.
	//
	// NotifyLoss is active until stop is called. lost may be called once more after that. None of the functions blocks,
	// and stop does not call lost.
	NotifyLoss(req Request, lost func(err error)) (stop func())
}

// listen ends the lease as soon as n reports that it is lost.
func (l *lease) listen(n LossNotifier) {
	stop := n.NotifyLoss(l.req, func(err error) { _ = l.finish(&LostError{Reason: reasonOf(err)}) })
	l.mu.Lock()
	l.deafen = stop
	ended := l.err != nil
	l.mu.Unlock()
	if ended {
		stop()
	}
}

// call makes a request for a caller, whose context is ctx. op names it in errors.
func (l *lease) call(
	ctx context.Context, op string, request func(ctx context.Context, cancel *context.CancelFunc) error,
) error {
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := request(bounded, &cancel); err != nil {
		if ended := l.Err(); ended != nil { // the end of the lease may have cancelled the request
			err = ended
		}
		return &Error{op, l.req.Key, withContext(ctx, err)}
	}
	return nil
}

// ask sends a request of the lease to the backend. If the answer is that the lock is no longer held, ask ends the
// lease.
func (l *lease) ask(
	ctx context.Context, cancel *context.CancelFunc, request func(ctx context.Context, req Request) error,
) error {
	if err := l.Err(); err != nil {
		return err
	}
	if err := ending.Of(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	if err := l.err; err != nil {
		l.mu.Unlock()
		return err
	}
	l.asking = append(l.asking, cancel)
	l.mu.Unlock()
	err := fromBackend(request(ctx, l.req))
	l.mu.Lock()
	if i := slices.Index(l.asking, cancel); i >= 0 { // otherwise the lease has ended
		l.asking = slices.Delete(l.asking, i, i+1)
	}
	l.mu.Unlock()
	if errors.Is(err, ErrNotHeld) {
		// This has no effect if Unlock was called meanwhile. The lock is then missing because Unlock deleted it.
		return l.finish(&LostError{Reason: reasonOf(err)})
	}
	return err
}

// ExtendTTL extends lease as [Lease.Extend] does, with another TTL: the lease ends d from now, and renewals keep to d
// from then on. d must be between [MinTTL] and [MaxTTL], and within the limit of a restart guard. With any other value
// the error matches [ErrInvalid], and the lease is as before.
//
// A smaller TTL shortens nothing that the lease already has: neither Until nor the lock in the store ends earlier than
// before. Later renewals use the smaller TTL. If the call fails for another reason, later renewals keep to the old TTL,
// and the lock may have been extended nevertheless.
//
// Middleware sees a call of Extend. A Lease that is not from a [Client] may ignore d.
func ExtendTTL(ctx context.Context, lease Lease, d time.Duration) error {
	return lease.Extend(context.WithValue(ctx, ttlKey{}, d))
}

// ttlKey is the key of a value in the context of Extend: the new TTL. It is a value because that passes through all
// middleware, and few leases need it.
type ttlKey struct{}

func (l *lease) Extend(ctx context.Context) error {
	ttl, other := ctx.Value(ttlKey{}).(time.Duration)
	if !other {
		ttl = l.currentTTL()
	}
	o := newOptions([]Option{TTL(ttl)})
	if err := o.validate(l.req.Key); err != nil {
		return &Error{"extend", l.req.Key, err}
	}
	return l.call(ctx, "extend", func(ctx context.Context, cancel *context.CancelFunc) error {
		start := time.Now()
		err := l.extend(ctx, cancel, ttl)
		if err == nil && other {
			l.adopt(start, ttl)
		}
		return err
	})
}

func (l *lease) currentTTL() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl
}

// extend makes one attempt to extend the lease by ttl from now. cancel must end ctx. It is called when the lease ends.
func (l *lease) extend(ctx context.Context, cancel *context.CancelFunc, ttl time.Duration) error {
	l.mu.Lock()
	l.longest = max(l.longest, ttl) // the store may set it although no answer comes
	l.mu.Unlock()
	start := time.Now()
	err := l.ask(ctx, cancel, func(ctx context.Context, req Request) error {
		req.TTL = ttl
		return l.client.backend.Extend(ctx, req)
	})
	if err != nil {
		return err
	}
	return l.prolong(start, ttl)
}

// prolong moves the end of the lease after a successful extension by ttl that began at start. If the lease has ended
// meanwhile, it stays ended, because callers have already seen that done was closed.
func (l *lease) prolong(start time.Time, ttl time.Duration) error {
	if err := l.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	l.failed = nil
	if until := validity.Until(start, ttl); until.After(l.until) {
		l.until = until
		l.setExpiry()
	}
	return nil
}

// adopt makes ttl the TTL of the renewals, after an extension that began at start.
func (l *lease) adopt(start time.Time, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ttl = ttl
	if l.err == nil {
		l.setExpiry()
		l.client.retime(l, start, ttl)
	}
}

// Verify implements verifiable.
func (l *lease) Verify(ctx context.Context) error {
	return l.call(ctx, "verify", func(ctx context.Context, cancel *context.CancelFunc) error {
		v, ok := l.client.backend.(Verifier)
		if !ok {
			return errNoVerifier
		}
		if err := l.ask(ctx, cancel, v.Verify); err != nil {
			return err
		}
		return l.Err()
	})
}

// releaseBound is how long Unlock waits for the store's answer, whatever the caller's context says. It is longer than a
// round trip between continents, and short enough for a shutdown while the store hangs. If Unlock did not wait after
// the end of that context, it would report nearly all releases as unknown that are answered within a millisecond.
const releaseBound = time.Second

var errUnlocking = fmt.Errorf("%w: another call of Unlock has not been answered yet", ErrUnavailable)

func (l *lease) Unlock(ctx context.Context) error {
	if err := l.unlock(ctx); err != nil {
		return &Error{"unlock", l.req.Key, err}
	}
	return nil
}

// unlock ends the lease and releases the lock. It uses a new context that has the values of ctx and ends after
// releaseBound. ctx itself has often ended already, and a release with an ended context would not be sent.
func (l *lease) unlock(ctx context.Context) (err error) {
	defer func() { err = l.release(ctx) }() // also if a hook panics
	return l.finish(ErrUnlocked)
}

// release releases the lock of a lease that has ended.
func (l *lease) release(ctx context.Context) error {
	if ctx.Value(undoKey{}) != nil {
		l.undo(ctx)
		return nil
	}
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBound)
	defer cancel()

	err := l.beginRelease(rctx)
	if errors.Is(err, ErrUnlocked) {
		return err
	}
	if err != nil {
		return unreleased(ctx, rctx, err)
	}
	req := l.held()
	if l.minHold > 0 {
		req.Keep = max(0, l.minHold-time.Since(l.start))
	}
	err = fromBackend(l.client.backend.Release(rctx, req))
	notHeld := errors.Is(err, ErrNotHeld)
	unanswered := l.endRelease(err == nil || notHeld)
	switch {
	case err == nil:
		return nil
	case notHeld && unanswered:
		// The earlier release may have released the lock in time, or the lock may have been lost before.
		return fmt.Errorf("%w: the lock is no longer held, but an earlier release was not answered, so it is not "+
			"known when it ended", ErrUnavailable)
	case notHeld:
		lost := l.lost(err)
		if lost == nil {
			return fmt.Errorf("%w: the store has no such lock although its TTL is not over: the key was deleted, or "+
				"this release was sent twice and the first answer was lost", ErrUnavailable)
		}
		return fmt.Errorf("%w: %w", err, lost)
	default:
		return unreleased(ctx, rctx, err)
	}
}

// held returns the request of the lock as the store may have it.
func (l *lease) held() Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	req := l.req
	req.TTL = l.longest
	return req
}

// beginRelease waits until no other call is releasing the lock. If it returns nil, the caller must call endRelease.
// It returns ErrUnlocked if an earlier release has succeeded.
func (l *lease) beginRelease(ctx context.Context) error {
	for waited := false; ; waited = true {
		l.mu.Lock()
		switch {
		case l.released:
			l.mu.Unlock()
			return ErrUnlocked
		case waited && ctx.Err() != nil:
			l.mu.Unlock()
			return errUnlocking
		case !l.releasing:
			l.releasing = true
			l.mu.Unlock()
			return nil
		}
		if l.settled == nil {
			l.settled = make(chan struct{})
		}
		settled := l.settled
		l.mu.Unlock()
		select {
		case <-settled:
		case <-ctx.Done():
		}
	}
}

// endRelease records the outcome of a release and lets the next call release. It reports whether an earlier release was
// not answered.
func (l *lease) endRelease(answered bool) (unanswered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	unanswered = l.sent
	if answered {
		l.released = true
	} else {
		l.sent = true
	}
	l.releasing = false
	if l.settled != nil {
		close(l.settled)
		l.settled = nil
	}
	return unanswered
}

// lost returns how the lease was lost, given the error notHeld of its release. It returns nil if the lease may not have
// been lost.
func (l *lease) lost(notHeld error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case errors.Is(l.err, ErrLost):
		return l.err
	case left(l.until) <= 0:
		return &LostError{Reason: LostExpired, Err: l.failed}
	}
	var e *NotHeldError
	ok := errors.As(notHeld, &e)
	if ok && e.Reason == LostGone {
		return nil
	}
	return &LostError{Reason: reasonOf(notHeld)}
}

// undo releases the lock of a lease that was never returned to a caller. It waits until ctx ends, if not for less.
func (l *lease) undo(ctx context.Context) {
	c := l.client
	if !l.counted.Swap(false) && !c.enter(&c.attempts) {
		return // the Client is closed, and the lock ends with its TTL
	}
	released := c.giveUp(ctx, l.held(), nil)
	c.attempts.Done()
	select {
	case <-released:
	case <-ctx.Done():
	}
}
