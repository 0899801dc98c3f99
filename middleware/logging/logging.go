package logging

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// New returns a middleware that logs to logger, as described in the package comment. If logger is nil, it is the
// current slog.Default. The states of stores and nodes are kept for each Locker that the middleware wraps. If warnings
// are not enabled, the middleware only passes calls on.
func New(logger *slog.Logger, opts ...Option) locker.Middleware {
	if logger == nil {
		logger = slog.Default()
	}
	o := output{logger: logger}
	for _, opt := range opts {
		opt(&o)
	}
	if o.longWait <= 0 {
		o.longWait = DefaultLongWait
	}
	return func(next locker.Locker) locker.Locker {
		l := &logged{next: next, output: &o}
		l.votes.Voted = l.voted
		return l
	}
}

type logged struct {
	next locker.Locker
	*output
	votes lockertrace.Trace // for calls of a lease; has only the hook Voted

	store   watch
	anyDown atomic.Bool // nodes is not empty
	mu      sync.Mutex
	nodes   map[string]*watch
}

func (l *logged) Unwrap() locker.Locker { return l.next }

func (l *logged) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	if !l.enabled(ctx, slog.LevelWarn) {
		return l.next.Lock(ctx, key, opts...)
	}
	h := newHold(ctx, l, key)
	h.trace.Waiting = h.waiting
	lease, err := l.next.Lock(lockertrace.With(ctx, &h.trace), key, opts...)
	return h.acquired(lease, err)
}

func (l *logged) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	if !l.enabled(ctx, slog.LevelWarn) {
		return l.next.TryLock(ctx, key, opts...)
	}
	h := newHold(ctx, l, key)
	lease, err := l.next.TryLock(lockertrace.With(ctx, &h.trace), key, opts...)
	return h.acquired(lease, err)
}

// hold is one call of Lock or TryLock and the resulting lease.
type hold struct {
	locker.Lease // nil until the lock is granted

	trace lockertrace.Trace // with the hooks below
	l     *logged
	ctx   context.Context // of the call; also used for the records of the lease
	key   string

	mu       sync.Mutex
	start    time.Time   // when the call began; after the grant, when the lease began
	waits    time.Time   // when the call began to wait; zero if it did not wait
	longWait *time.Timer // calls stillWaiting
	long     bool        // stillWaiting was called
	holder   string      // the label of the holder that was seen last

	fence   atomic.Uint64
	inDoubt atomic.Bool
	gone    atomic.Bool // the loss was logged
}

// Unwrap returns the wrapped Lease, for [locker.Verify].
func (h *hold) Unwrap() locker.Lease { return h.Lease }

func newHold(ctx context.Context, l *logged, key string) *hold {
	h := &hold{l: l, ctx: ctx, key: key, start: time.Now()}
	h.trace = lockertrace.Trace{
		Voted: l.votes.Voted, Attempted: h.attempted, Renewed: h.renewed, InDoubt: h.doubted,
		Lost: func(err error) {
			var lost *locker.LostError
			if errors.As(err, &lost) {
				h.lost(lost)
			}
		},
	}
	return h
}

func (h *hold) attempted(a lockertrace.Attempt) {
	h.l.storeSaid(h.ctx, a.Err)
	if a.Err == nil { // errors.As would allocate
		return
	}
	var held *locker.HeldError
	if errors.As(a.Err, &held) {
		h.mu.Lock()
		h.holder = held.Label
		h.mu.Unlock()
	}
}

func (h *hold) waiting(w lockertrace.Waiting) {
	tells := h.l.enabled(h.ctx, slog.LevelInfo) // without mu, because it asks the log handler
	h.mu.Lock()
	h.holder = w.Label
	if h.waits.IsZero() { // otherwise an inner middleware has called Lock again
		h.waits = time.Now()
		if tells {
			h.longWait = time.AfterFunc(h.l.longWait, h.stillWaiting)
		}
	}
	h.mu.Unlock()
	if h.l.enabled(h.ctx, slog.LevelDebug) {
		h.l.log(h.ctx, slog.LevelDebug, "waiting for lock", h.keyAttr(), holder(w.Label),
			duration("remaining", w.Remaining))
	}
}

func (h *hold) stillWaiting() {
	h.mu.Lock()
	h.long = true
	label := h.holder
	h.mu.Unlock()
	h.l.log(h.ctx, slog.LevelInfo, "still waiting for lock", h.keyAttr(), holder(label),
		slog.Duration("waited", h.l.longWait))
}

// acquired records the end of the call, and returns its results.
func (h *hold) acquired(lease locker.Lease, err error) (returned locker.Lease, _ error) {
	defer func() {
		if err == nil && returned == nil { // the logger has panicked
			_ = lease.Unlock(h.ctx)
		}
	}()
	h.mu.Lock()
	if h.longWait != nil {
		h.longWait.Stop()
	}
	var waited time.Duration
	if !h.waits.IsZero() {
		waited = time.Since(h.waits)
	}
	level := slog.LevelDebug
	if h.long {
		level = slog.LevelInfo
	}
	h.mu.Unlock()
	if err != nil {
		if outcomeOf(err) == down { // necessary for a Locker that calls no hooks
			h.l.storeSaid(h.ctx, err)
		}
		h.debug("lock not acquired", err, slog.Duration("took", h.age()))
		return nil, err
	}
	h.l.storeSaid(h.ctx, nil)
	took := h.age()
	h.has(lease)
	if h.l.enabled(h.ctx, level) {
		h.l.log(h.ctx, level, "lock acquired", h.keyAttr(), h.fenceAttr(),
			slog.Duration("took", took), duration("waited", waited))
	}
	return h, nil
}

// has records that the call has acquired lease.
func (h *hold) has(lease locker.Lease) {
	h.Lease = lease
	h.fence.Store(lease.Fence())
	h.mu.Lock()
	h.start = time.Now()
	h.mu.Unlock()
}

func (h *hold) renewed(r lockertrace.Renewal) {
	switch {
	case r.Err != nil:
		h.debug("lock not renewed", r.Err, slog.Duration("took", r.Duration))
	case h.inDoubt.Swap(false) && h.l.enabled(h.ctx, slog.LevelInfo):
		h.l.log(h.ctx, slog.LevelInfo, "lock renewed again", h.keyAttr(), h.fenceAttr())
	default:
		h.debug("lock renewed", nil, slog.Duration("took", r.Duration))
	}
}

func (h *hold) doubted(err error) {
	h.inDoubt.Store(true)
	if h.l.enabled(h.ctx, slog.LevelWarn) {
		h.l.log(h.ctx, slog.LevelWarn, "lock in doubt", h.keyAttr(), h.fenceAttr(), errAttr(err))
	}
}

func (h *hold) lost(err *locker.LostError) {
	if h.gone.Swap(true) {
		return
	}
	level := slog.LevelWarn
	if err.Reason == locker.LostClosed { // caused by the program itself
		level = slog.LevelInfo
	}
	if h.l.enabled(h.ctx, level) {
		h.l.log(h.ctx, level, "lock lost", h.keyAttr(), h.fenceAttr(), slog.String("reason", string(err.Reason)),
			slog.Duration("held", h.age()))
	}
}

func (h *hold) Extend(ctx context.Context, opts ...locker.Option) error {
	start := time.Now()
	err := h.Lease.Extend(lockertrace.With(ctx, &h.l.votes), opts...)
	h.l.storeSaid(ctx, err)
	if err == nil {
		h.debug("lock extended", nil, slog.Duration("took", time.Since(start)))
	} else {
		h.debug("lock not extended", err, slog.Duration("took", time.Since(start)))
	}
	return err
}

func (h *hold) Unlock(ctx context.Context) error {
	err := h.Lease.Unlock(lockertrace.With(ctx, &h.l.votes))
	h.l.storeSaid(ctx, err)
	if err == nil {
		h.debug("lock released", nil, slog.Duration("held", h.age()))
		return nil
	}
	if errors.Is(err, locker.ErrNotHeld) { // the error of a deferred Unlock is often ignored
		var lost *locker.LostError
		ok := errors.As(err, &lost)
		if !ok {
			lost = &locker.LostError{Reason: locker.LostGone}
		}
		h.lost(lost)
	}
	h.debug("lock not released", err, slog.Duration("held", h.age()))
	return err
}

// age returns how long ago the call or the lease began.
func (h *hold) age() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.start)
}

// debug logs the result of an operation at level Debug.
func (h *hold) debug(message string, err error, span slog.Attr) {
	if !h.l.enabled(h.ctx, slog.LevelDebug) {
		return
	}
	e := slog.Attr{}
	if err != nil {
		e = errAttr(err)
	}
	h.l.log(h.ctx, slog.LevelDebug, message, h.keyAttr(), h.fenceAttr(), span, e)
}

func (h *hold) keyAttr() slog.Attr { return h.l.keyAttr(h.key) }

// fenceAttr returns the attribute for the fencing token. It is empty if there is none.
func (h *hold) fenceAttr() slog.Attr {
	if f := h.fence.Load(); f != 0 {
		return slog.Uint64("fence", f)
	}
	return slog.Attr{}
}

// holder returns the attribute for the label of a lock's holder. It is empty if there is none.
func holder(label string) slog.Attr {
	if label == "" {
		return slog.Attr{}
	}
	return slog.String("holder", label)
}

func duration(name string, d time.Duration) slog.Attr {
	if d <= 0 {
		return slog.Attr{}
	}
	return slog.Duration(name, d)
}

// errAttr returns the attribute for err, without the operation and the key. The message already has the operation, and
// the option [Key] decides whether the key is logged.
func errAttr(err error) slog.Attr {
	var e *locker.Error
	if errors.As(err, &e) {
		err = e.Err
	}
	return slog.String("err", err.Error())
}
