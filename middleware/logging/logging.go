package logging

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
)

// New returns a middleware that logs to logger, as the package's comment describes. nil: slog.Default, as it is now. What
// is known of stores and nodes is kept for each Locker that it is put around. Where logger does not even take warnings, it
// does nothing, and costs nothing.
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
	votes locker.Trace // for calls of a lease: with Voted alone

	store   watch
	anyDown atomic.Bool // there is something in nodes
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
	lease, err := l.next.Lock(locker.WithTrace(ctx, &h.trace), key, opts...)
	return h.acquired(lease, err)
}

func (l *logged) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	if !l.enabled(ctx, slog.LevelWarn) {
		return l.next.TryLock(ctx, key, opts...)
	}
	h := newHold(ctx, l, key)
	lease, err := l.next.TryLock(locker.WithTrace(ctx, &h.trace), key, opts...)
	return h.acquired(lease, err)
}

// hold is one call of Lock or TryLock and, if it is granted, its lease.
type hold struct {
	locker.Lease // nil until it is granted

	trace locker.Trace // the hooks below
	l     *logged
	ctx   context.Context // of the call, for the records of the lease
	key   string

	mu      sync.Mutex
	start   time.Time   // of the call; from when it is granted on, of the lease
	waits   time.Time   // since when; zero: it did not have to
	patient *time.Timer // reports that it still waits
	long    bool        // and has

	fence   atomic.Uint64
	inDoubt atomic.Bool
	gone    atomic.Bool // the loss has been logged
}

func newHold(ctx context.Context, l *logged, key string) *hold {
	h := &hold{l: l, ctx: ctx, key: key, start: time.Now()}
	h.trace = locker.Trace{Voted: l.votes.Voted, Attempted: h.attempted, Renewed: h.renewed, InDoubt: h.doubted, Lost: h.lost}
	return h
}

func (h *hold) attempted(a locker.Attempt) { h.l.storeSaid(h.ctx, a.Err) }

func (h *hold) waiting(w locker.Waiting) {
	h.mu.Lock()
	h.waits = time.Now()
	if h.l.enabled(h.ctx, slog.LevelInfo) {
		h.patient = time.AfterFunc(h.l.longWait, h.stillWaiting)
	}
	h.mu.Unlock()
	if h.l.enabled(h.ctx, slog.LevelDebug) {
		h.l.log(h.ctx, slog.LevelDebug, "waiting for lock", h.keyAttr(), duration("remaining", w.Remaining))
	}
}

func (h *hold) stillWaiting() {
	h.mu.Lock()
	h.long = true
	h.mu.Unlock()
	h.l.log(h.ctx, slog.LevelInfo, "still waiting for lock", h.keyAttr(), slog.Duration("waited", h.l.longWait))
}

// acquired ends the call.
func (h *hold) acquired(lease locker.Lease, err error) (locker.Lease, error) {
	h.mu.Lock()
	if h.patient != nil {
		h.patient.Stop()
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
		if outcomeOf(err) == down { // of a Locker that calls no hooks
			h.l.storeSaid(h.ctx, err)
		}
		h.debug("lock not acquired", err, slog.Duration("took", h.age()))
		return nil, err
	}
	h.l.storeSaid(h.ctx, nil)
	h.Lease = lease
	h.fence.Store(lease.Fence())
	took := h.age()
	if h.l.enabled(h.ctx, level) {
		h.l.log(h.ctx, level, "lock acquired", h.keyAttr(), h.fenceAttr(), slog.Duration("took", took), duration("waited", waited))
	}
	h.mu.Lock()
	h.start = time.Now()
	h.mu.Unlock()
	return h, nil
}

func (h *hold) renewed(r locker.Renewal) {
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
	if err.Reason == locker.LostClosed { // the program did that itself
		level = slog.LevelInfo
	}
	if h.l.enabled(h.ctx, level) {
		h.l.log(h.ctx, level, "lock lost", h.keyAttr(), h.fenceAttr(), slog.String("reason", string(err.Reason)),
			slog.Duration("held", h.age()))
	}
}

func (h *hold) Extend(ctx context.Context) error {
	start := time.Now()
	err := h.Lease.Extend(locker.WithTrace(ctx, &h.l.votes))
	h.l.storeSaid(ctx, err)
	if err == nil {
		h.debug("lock extended", nil, slog.Duration("took", time.Since(start)))
	} else {
		h.debug("lock not extended", err, slog.Duration("took", time.Since(start)))
	}
	return err
}

func (h *hold) Unlock(ctx context.Context) error {
	err := h.Lease.Unlock(locker.WithTrace(ctx, &h.l.votes))
	h.l.storeSaid(ctx, err)
	if err == nil {
		h.debug("lock released", nil, slog.Duration("held", h.age()))
		return nil
	}
	if errors.Is(err, locker.ErrNotHeld) { // a deferred Unlock tells nobody
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

// age is how long ago the call or the lease began.
func (h *hold) age() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.start)
}

// debug logs what became of something.
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

// fenceAttr is empty while there is no fencing token.
func (h *hold) fenceAttr() slog.Attr {
	if f := h.fence.Load(); f != 0 {
		return slog.Uint64("fence", f)
	}
	return slog.Attr{}
}

func duration(name string, d time.Duration) slog.Attr {
	if d <= 0 {
		return slog.Attr{}
	}
	return slog.Duration(name, d)
}

// errAttr says what went wrong without operation and key: the message has the one, [Key] decides on the other.
func errAttr(err error) slog.Attr {
	var e *locker.Error
	if errors.As(err, &e) {
		err = e.Err
	}
	return slog.String("err", err.Error())
}
