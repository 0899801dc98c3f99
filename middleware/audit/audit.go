package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/internal/core/tick"
	"github.com/golocker/locker/lockertrace"
)

// Middleware returns a middleware that writes to the log. It belongs right around the Client, inside all other
// middleware, where each attempt is seen, and each lock that a permit or a reader is made of. store names the store,
// and the prefix of its keys, for those who compare logs: locks of two stores have nothing to do with each other. A
// lock is to be in one log only.
func (l *Log) Middleware(store string) locker.Middleware {
	return func(next locker.Locker) locker.Locker { return &audited{next, l, store} }
}

type audited struct {
	next  locker.Locker
	log   *Log
	store string
}

func (a *audited) Unwrap() locker.Locker { return a.next }

func (a *audited) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	defer a.log.call()()
	h := a.newHold(ctx, key, false)
	lease, err := a.next.Lock(lockertrace.With(ctx, &h.trace), key, opts...)
	return h.acquired(ctx, lease, err)
}

func (a *audited) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	defer a.log.call()()
	h := a.newHold(ctx, key, true)
	lease, err := a.next.TryLock(lockertrace.With(ctx, &h.trace), key, opts...)
	return h.acquired(ctx, lease, err)
}

// TryLockMany implements [locker.ManyLocker]. Each key has a line.
func (a *audited) TryLockMany(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
	defer a.log.call()()
	holds := make([]*hold, len(m.Keys))
	for i, key := range m.Keys {
		holds[i] = a.newHold(ctx, key, true)
	}
	traced := lockertrace.With(ctx, &lockertrace.Trace{
		LeaseOf: func(i int) *lockertrace.Trace { return &holds[i].trace },
	})
	leases, err := locker.TryLockMany(traced, a.next, m, opts...)
	if errors.Is(err, errors.ErrUnsupported) { // the locks are acquired one after the other, with a line each
		return nil, err
	}
	for i, h := range holds {
		switch {
		case err != nil:
			_, _ = h.acquired(ctx, nil, err)
		case leases[i] != nil:
			leases[i], _ = h.acquired(ctx, leases[i], nil)
		}
	}
	return leases, err
}

// Inspect implements [inspect.Inspector].
func (a *audited) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	i, ok := locker.As[inspect.Inspector](a.next)
	if !ok {
		return inspect.Inspection{State: inspect.Unknown}, &locker.Error{Op: "inspect", Key: key, Err: errNoInspector}
	}
	return i.Inspect(ctx, key)
}

// ForceRelease implements [inspect.Inspector].
func (a *audited) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	i, ok := locker.As[inspect.Inspector](a.next)
	if !ok {
		return inspect.Inspection{State: inspect.Unknown}, &locker.Error{Op: "release", Key: key, Err: errNoInspector}
	}
	defer a.log.call()()
	asked := time.Now()
	seen, err := i.ForceRelease(ctx, key, owner)
	line := a.line(Forced, key)
	line.fail(err)
	line.Fence, line.Label = seen.Fence, seen.Label
	a.log.add(line.at(ctx, a.log, asked), asked)
	return seen, err
}

var errNoInspector = fmt.Errorf("the backend cannot show the state of its locks: %w", errors.ErrUnsupported)

// line returns a line about key. A key that is not UTF-8 is written as a hash, because JSON cannot have it.
func (a *audited) line(event Event, key string) *Line {
	line := &Line{Event: event, Store: a.store, Key: key, Kind: Plain}
	if a.log.hashKeys || !utf8.ValidString(key) {
		line.Key, line.KeyHash = "", hash(key)
	}
	return line
}

// hash returns the first 128 bits of the SHA-256 of s.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

// at adds the times of a call with the context ctx that returns now.
func (l *Line) at(ctx context.Context, log *Log, asked time.Time) *Line {
	l.Answered = time.Now()
	if d, ok := ctx.Deadline(); ok {
		l.DeadlineMono = max(1, d.Sub(log.start))
	}
	return l
}

// fail adds what err says.
func (l *Line) fail(err error) {
	var lost *locker.LostError
	if errors.As(err, &lost) {
		l.Reason = string(lost.Reason)
	}
	switch {
	case err == nil:
		l.Outcome = OK
		return
	case errors.Is(err, locker.ErrNotHeld):
		l.Outcome = NotHeld
	case errors.Is(err, locker.ErrLost):
		l.Outcome = Ended
	case errors.Is(err, locker.ErrUnlocked):
		l.Outcome = Unlocked
	case errors.Is(err, locker.ErrHeld) && !errors.Is(err, locker.ErrUnavailable):
		l.Outcome = Held
	default:
		l.Outcome = Unknown
	}
	var of *locker.Error
	if errors.As(err, &of) { // the event has the operation
		err = of.Err
	}
	if l.Err = err.Error(); l.KeyHash != "" {
		l.Err = withoutKey(err)
	}
}

// withoutKey says why a call has failed, without words of a store or a middleware: the key may be in them, in any form.
func withoutKey(err error) string {
	var said []string
	var network *net.OpError
	var errno syscall.Errno
	switch {
	case errors.As(err, &network):
		said = append(said, network.Error())
	case errors.As(err, &errno):
		said = append(said, errno.Error())
	}
	for _, known := range []error{
		locker.ErrHeld, locker.ErrNotHeld, locker.ErrLost, locker.ErrUnlocked, locker.ErrUnavailable, locker.ErrNoQuorum,
		locker.ErrReleaseUnknown, locker.ErrNotReplicated, locker.ErrInvalid, locker.ErrReentrant, locker.ErrForeignKey,
		locker.ErrClosed, errors.ErrUnsupported, context.Canceled, context.DeadlineExceeded, io.EOF, net.ErrClosed,
	} {
		if errors.Is(err, known) {
			said = append(said, known.Error())
		}
	}
	return strings.Join(said, ": ")
}

// hold is one call of Lock or TryLock, and the lease that it returns.
type hold struct {
	locker.Lease // nil until the lock is granted

	trace lockertrace.Trace // with the hooks below
	of    *audited
	asked time.Time

	mu    sync.Mutex // guards the following
	line  Line       // of the call; after the grant, what all lines have in common
	ready bool       // the line of the acquisition was written
	lost  error      // of the lease, perhaps before that line
}

func (a *audited) newHold(ctx context.Context, key string, try bool) *hold {
	h := &hold{of: a, line: *a.line(Refused, key)}
	h.line.Try = try
	entry := several.EntryFrom(ctx, key)
	switch {
	case entry != nil:
		h.line.Kind, h.line.Limit = kinds[entry.Wants.Kind], entry.Wants.N
	case tick.From(ctx, key) != nil:
		h.line.Kind = Tick
	case several.KindFrom(ctx) != "":
		h.line.Kind, h.line.Alone = Kind(several.KindFrom(ctx)), true
	}
	h.trace = lockertrace.Trace{Renewed: h.renewed, Lost: h.ended}
	h.asked = time.Now()
	return h
}

var kinds = map[backend.Kind]Kind{
	backend.Permit: Permit, backend.Shared: Shared, backend.Upgradeable: Upgradeable, backend.Exclusive: Exclusive,
}

// Unwrap returns the wrapped Lease, for [locker.LeaseAs].
func (h *hold) Unwrap() locker.Lease { return h.Lease }

// acquired writes the line of a call with the context ctx, and returns its results.
func (h *hold) acquired(ctx context.Context, lease locker.Lease, err error) (locker.Lease, error) {
	if errors.Is(err, errors.ErrUnsupported) { // the caller asks in another way
		return nil, err
	}
	line := h.line
	line.fail(err)
	if err != nil {
		var held *locker.HeldError
		if errors.As(err, &held) {
			line.Label = held.Label
		}
		h.of.log.add(line.at(ctx, h.of.log, h.asked), h.asked)
		return nil, err
	}
	line.describe(ctx, lease)
	line.at(ctx, h.of.log, h.asked)
	h.mu.Lock()
	h.Lease = lease
	h.line = Line{
		Store: line.Store, Key: line.Key, KeyHash: line.KeyHash, Kind: line.Kind, Grant: line.Grant, Fence: line.Fence,
		Slots: line.Slots, Limit: line.Limit,
	}
	h.of.log.add(&line, h.asked)
	h.ready = true
	lost := h.lost
	h.mu.Unlock()
	if lost != nil {
		common, _ := h.common()
		h.tellLost(common, lost)
	}
	return h, nil
}

// describe makes l the line of a call with the context ctx that has acquired lease.
func (l *Line) describe(ctx context.Context, lease locker.Lease) {
	l.Event, l.Fence, l.Until = Acquired, lease.Fence(), lease.Until()
	if token := lease.Token(); token != "" { // that of several locks is empty
		l.Grant = hash(token)[:16]
	}
	if entry := several.EntryFrom(ctx, lease.Key()); entry != nil {
		l.Slots, _ = entry.Of(l.Fence)
		if from := entry.Wants.From; from != "" {
			l.From = hash(from)[:16]
		}
	}
	if of, ok := locker.LeaseAs[interface{ Overlaps() bool }](lease); ok && of.Overlaps() {
		if l.Alone = false; l.Kind == Plain {
			l.Kind = Shared // a permit or a reader, and the middleware is around it
		}
	}
	if of, ok := locker.LeaseAs[granted](lease); ok {
		if l.First, l.Tokens, l.Label = of.Granted(); l.First != l.Fence {
			l.Event = HandedOver
		}
	}
}

// granted is implemented by the leases of a Client. It returns the block of tokens of the grant, and the label.
type granted interface {
	Granted() (first uint64, tokens int, label string)
}

// write writes a line about the lease.
func (h *hold) write(ctx context.Context, event Event, auto bool, asked time.Time, err error) {
	line, ready := h.common()
	if !ready {
		return
	}
	line.Event, line.Auto = event, auto
	if line.fail(err); err == nil && event == Extended {
		line.Until = h.Lease.Until()
	}
	h.of.log.add(line.at(ctx, h.of.log, asked), asked)
}

// common returns what all lines of the lease have in common, and whether that of the acquisition was written.
func (h *hold) common() (line Line, ready bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.line, h.ready
}

func (h *hold) renewed(r lockertrace.Renewal) {
	h.write(context.Background(), Extended, true, time.Now().Add(-r.Duration), r.Err)
}

func (h *hold) ended(err error) {
	h.mu.Lock()
	line, ready := h.line, h.ready
	h.lost = err
	h.mu.Unlock()
	if ready {
		h.tellLost(line, err)
	}
}

// tellLost writes that the lease was lost.
func (h *hold) tellLost(line Line, err error) {
	now := time.Now()
	line.Event = Lost
	line.fail(err)
	line.Outcome, line.Until = "", h.Lease.Until()
	h.of.log.add(&line, now)
}

func (h *hold) Extend(ctx context.Context, opts ...locker.Option) error {
	if x := several.ExtensionFrom(ctx); x != nil && x.Share { // whatever comes of it
		h.mu.Lock()
		h.line.Kind = Shared
		h.mu.Unlock()
	}
	defer h.of.log.call()()
	asked := time.Now()
	err := h.Lease.Extend(ctx, opts...)
	h.write(ctx, Extended, false, asked, err)
	return err
}

// Verify is found by [locker.Verify].
func (h *hold) Verify(ctx context.Context) error {
	defer h.of.log.call()()
	asked := time.Now()
	err := locker.Verify(ctx, h.Lease)
	h.write(ctx, Verified, false, asked, err)
	return err
}

// Bind is found by [locker.Bind]. It proves what Verify proves.
func (h *hold) Bind(ctx context.Context, to any) error {
	defer h.of.log.call()()
	asked := time.Now()
	err := locker.Bind(ctx, h.Lease, to)
	h.write(ctx, Verified, false, asked, err)
	return err
}

func (h *hold) Unlock(ctx context.Context) error {
	defer h.of.log.call()()
	asked := time.Now()
	err := h.Lease.Unlock(ctx)
	told := err
	if err == nil && several.Undoes(ctx) { // whatever the store has said
		told = errUndone
	}
	h.write(ctx, Released, false, asked, told)
	return err
}

var errUndone = fmt.Errorf("%w: the call has not got all that it wanted, so this is released in the background",
	locker.ErrUnavailable)
