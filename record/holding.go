package record

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// holding is what the Backend knows about a lock that it has granted. It is the Private of the Grant.
type holding struct {
	since time.Time // when the lock was asked for

	mu   sync.Mutex
	own  entry     // the owner's record, as it was written or read last
	ends time.Time // the latest end of a TTL that was asked for; zero if that is not known

	// released is what releases have written to the record of a group, which does not tell who has released a lock. It is
	// guarded by the mu of the lane.
	released []*content
}

// maxReleased is how many of them are remembered. The last ones are those that may not have been answered.
const maxReleased = 16

// holdingOf returns the holding of a request. One of a caller that has lost it has no record, which is read first.
func holdingOf(req backend.Request) *holding {
	if h, ok := req.Private.(*holding); ok {
		return h
	}
	return &holding{since: time.Now()}
}

func (h *holding) last() entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.own
}

func (h *holding) saw(own entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.own = own; own.sheet != nil && own.sheet.group != nil {
		h.own.sheet = nil // is that of others, too
	}
}

// asks notes, before it is asked for, that the lock is to last until ends. It returns false if the time of the lock is
// over already.
func (h *holding) asks(now, ends time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ends.IsZero() && !now.Before(h.ends) {
		return false
	}
	if ends.After(h.ends) {
		h.ends = ends
	}
	return true
}

// validAt reports whether the owner could rely on the lock at now.
func (h *holding) validAt(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Before(h.ends)
}

// length returns the length of a record that is sent at now, in the place of own. It covers all that was asked for, by
// other extensions too, whose answers may not have come yet.
func (h *holding) length(now time.Time, own entry) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	length := milliseconds(h.ends.Sub(now))
	if h.own.version == "" { // the owner has lost its holding: nothing is known but its record
		length = max(length, own.Length)
	}
	return length
}

// errReleased means that an earlier release has released the lock.
var errReleased = errors.New("released before")

// errOthers means that a release was answered with a conflict, and that so many others have had the lock since that
// their record does not tell whether it was executed.
var errOthers = errors.New("others have had the lock since")

// renewal replaces what the record says of the owner's lock by what to makes of it: it extends or releases the lock. If
// the record is another one, it is read, and the renewal tried again if the lock is the owner's: an earlier extension
// was stored, and its answer was lost, or others have written about other locks of the group.
type renewal struct {
	*Backend
	req backend.Request
	h   *holding
	at  string
	to  func(own entry) content

	// passes is the owner to whom to passes the lock on. If that one has it, an earlier request has done so.
	passes string

	own  entry    // what the record was last known to say
	next *content // what is to be written
	sent *content // what was written last
	done entry    // what is stored at the end
	err  error

	misses int    // how many times the lock was written, to end too early
	missed string // the nonce of the last time
}

func (r *renewal) miss(found entry) {
	if found.Nonce != r.missed {
		r.misses, r.missed = r.misses+1, found.Nonce
	}
}

func (b *Backend) renewal(req backend.Request, h *holding, to func(own entry) content) *renewal {
	r := &renewal{Backend: b, req: req, h: h, at: b.placeOf(req.Key).at, to: to, own: h.last(), sent: &content{}}
	if r.own.Owner != req.Token { // an owner that the lock was passed on to has no record yet
		r.own = entry{}
	}
	return r
}

// change carries out a renewal.
func (b *Backend) change(ctx context.Context, r *renewal) error {
	return b.run(ctx, b.placeOf(r.req.Key), r, r.own.sheet)
}

func (r *renewal) ends(error) bool { return false }
func (r *renewal) result() error   { return r.err }

func (r *renewal) sends(s *sheet) {
	r.sent = r.next
	if s.group != nil && r.sent.State != held {
		r.h.released = append(r.h.released[max(0, len(r.h.released)-maxReleased+1):], r.sent)
	}
}

func (r *renewal) unread(err error) error {
	if errors.Is(err, locker.ErrForeignKey) && r.own.State == kept {
		return errReleased // and then somebody has taken the lock, whose end was too early
	}
	return notHeld(err)
}

// look implements edit.
func (r *renewal) look(s *sheet, _ bool) []change {
	found, nonce := s.entry(r.at), r.sent.Nonce
	nonces := []string{nonce}
	for _, c := range r.h.released {
		nonces = append(nonces, c.Nonce)
	}
	follows, known := found.follows(nonces, &r.own)
	r.err = nil
	switch {
	case r.own.State == kept && found.Owner != r.req.Token:
		r.err = errReleased // and then somebody has taken the lock, whose end was too early
	case found.is(nonce), // it is stored, also if its success was reported as a conflict
		r.misses > 0 && found.State == held && found.Owner == r.passes: // what it has written before is
		if r.covers(&found.content, found.length(), found.at) {
			r.done = found
			return nil
		}
		r.miss(found) // others would take the lock too soon
	case follows:
		r.err = errReleased // and others have had the lock since
	case r.passes != "" && found.State == held && found.Owner == r.passes:
		r.done = found // as long as the first request said
		return nil
	case found.State == kept && found.Owner == r.req.Token:
		c := r.to(found) // it may have been released by a write whose answer was lost, or that could not be mended
		if c.State != kept || r.covers(&found.content, c.length(), found.at) {
			r.err = errReleased
			return nil
		}
		r.miss(found)
	default:
		if r.err = found.owned(r.req); r.err != nil && nonce != "" && !known {
			r.err = fmt.Errorf("%w: %w", errOthers, r.err)
		}
	}
	if r.err != nil {
		return nil
	}
	next := r.to(found)
	next.Over = found.Over
	r.own, r.next = found, &next
	c := change{at: r.at, next: r.next, misses: r.misses}
	if r.passes == "" {
		c.own = &r.own.content
	}
	return []change{c}
}

// owned returns nil if the record is that of the request's owner, and otherwise says who has the lock.
func (e *entry) owned(req backend.Request) error {
	switch {
	case e.version == "":
		return locker.ErrNotHeld
	case e.State == held && e.Owner == req.Token:
		return nil
	case e.taken() && e.Owner != req.Token:
		return &locker.NotHeldError{Reason: locker.LostTakenOver}
	case e.Owner == req.Token:
		return errReleased
	}
	return locker.ErrNotHeld
}

// notHeld converts the error of a lock whose record somebody has overwritten with something else.
func notHeld(err error) error {
	if errors.Is(err, locker.ErrForeignKey) {
		return &locker.NotHeldError{Reason: locker.LostTakenOver}
	}
	return err
}

// Extend implements [backend.Backend].
//
// A lock whose time is over is not extended, although nobody may have taken it: Extend releases it instead.
func (b *Backend) Extend(ctx context.Context, req backend.Request) error {
	if err := b.usable(); err != nil {
		return err
	}
	ctx, cancel := b.bounded(ctx, req.TTL)
	defer cancel()
	if c, ok := req.Private.(*claim); ok {
		return c.verify(ctx)
	}
	h, now := holdingOf(req), time.Now()
	if !h.asks(now, now.Add(req.TTL)) {
		if err := b.release(ctx, req, now); err != nil {
			return err
		}
		return locker.ErrNotHeld
	}
	r := b.renewal(req, h, func(own entry) content {
		return content{
			State: held, Owner: req.Token, Label: req.Label, Token: own.Token, Last: own.Last,
			Length: h.length(now, own), Age: now.Sub(h.since).Milliseconds(),
		}
	})
	err := b.change(ctx, r)
	switch {
	case err == nil:
		h.saw(r.done)
	case errors.Is(err, errReleased):
		return locker.ErrNotHeld
	}
	return err
}

// Release implements [backend.Backend]. It writes that the lock is free.
func (b *Backend) Release(ctx context.Context, req backend.Request) error {
	if err := b.usable(); err != nil {
		return err
	}
	bounded, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	if c, ok := req.Private.(*claim); ok {
		err := c.release(bounded, req.Keep)
		if errors.Is(err, locker.ErrUnavailable) {
			b.chores.Repeat(time.Now().Add(req.TTL), func(ctx context.Context) error { return c.release(ctx, 0) })
		}
		return err
	}
	now := time.Now()
	keepUntil, valid := now.Add(req.Keep), holdingOf(req).validAt(now)
	err := b.release(bounded, req, keepUntil)
	b.turns.of(nameOf(b.prefix+req.Key), func(t *turn) { t.freed = time.Now() })
	switch {
	case valid && errors.Is(err, errOthers):
		// Nobody could take the lock before this release was sent, but by force.
		return fmt.Errorf("%w: this release was sent twice and the first answer was lost, or the lock was taken by force: "+
			"many others have had it since", locker.ErrUnavailable)
	case errors.Is(err, locker.ErrUnavailable):
		b.chores.Repeat(time.Now().Add(max(req.TTL, req.Keep)+cleanupTime), func(ctx context.Context) error {
			err := b.release(ctx, req, keepUntil)
			if errors.Is(err, locker.ErrNotHeld) {
				return nil
			}
			return err
		})
	}
	return err
}

// release releases the lock. It stays taken until keepUntil.
func (b *Backend) release(ctx context.Context, req backend.Request, keepUntil time.Time) error {
	err := b.change(ctx, b.renewal(req, holdingOf(req), func(own entry) content {
		c := content{State: free, Owner: req.Token, Last: own.Last}
		if rest := time.Until(keepUntil); rest > 0 {
			c.State, c.Token, c.Length = kept, own.Token, milliseconds(rest)
		}
		return c
	}))
	if errors.Is(err, errReleased) {
		return nil
	}
	return err
}

// Verify implements [backend.Verifier]. A read is enough, because no read of a [Store] is older than the last write: if
// the record is the owner's, nobody has replaced it.
func (b *Backend) Verify(ctx context.Context, req backend.Request) error {
	if err := b.usable(); err != nil {
		return err
	}
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	if c, ok := req.Private.(*claim); ok {
		return c.verify(ctx)
	}
	found, err := b.read(ctx, b.placeOf(req.Key))
	if err == nil {
		err = found.owned(req)
	}
	switch {
	case err == nil && found.Token > req.Fence:
		return &locker.NotHeldError{Reason: locker.LostSuperseded}
	case errors.Is(err, errReleased):
		return locker.ErrNotHeld
	}
	return notHeld(err)
}
