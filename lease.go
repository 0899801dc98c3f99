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

	// The state of the release; see unlock.go.
	releasing bool          // a release is in progress
	settled   chan struct{} // closed when that release has ended; nil unless another Unlock waits for it
	sent      bool          // a release was sent and its outcome is unknown
	released  bool          // the store has confirmed that the lock no longer belongs to the lease
}

// hold begins the lease of a lock that was granted to req, which was sent at start. It fails if the validity was over
// before the grant arrived, or if the Client was closed.
func (c *Client) hold(trace *lockertrace.Trace, req Request, start time.Time, o options) (*lease, error) {
	l := &lease{
		client:  c,
		req:     req,
		trace:   trace,
		renews:  !o.noRenewal,
		start:   start,
		maxHold: o.maxHold,
		minHold: o.minHold,
		ttl:     req.TTL,
		longest: req.TTL,
		pos:     -1,
		until:   validity.Until(start, req.TTL),
	}
	end, reason := l.end()
	rest := left(end)
	switch {
	case rest <= 0 && reason == LostMaxHold:
		return nil, fmt.Errorf("%w: the lock was granted too late: MaxHold is over", ErrUnavailable)
	case rest <= 0:
		return nil, fmt.Errorf("%w: the lock was granted too late, with nothing left of its TTL of %v",
			ErrUnavailable, req.TTL)
	}
	due := never
	if l.renews {
		due = start.Add(req.TTL / renewPart)
	}
	l.mu.Lock() // the timer may fire before it is in l.expiry
	defer l.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if c.schedule.timer == nil { // not made in NewClient, so that tests can use a Client made outside their bubble
		c.schedule.timer = time.AfterFunc(time.Hour, c.tend)
	}
	c.schedule.add(l, due)
	l.expiry = time.AfterFunc(rest, l.rearm)
	return l, nil
}

// forget removes l from the schedule and stops its timer.
func (c *Client) forget(l *lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.schedule.remove(l)
	l.expiry.Stop()
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
