package nats

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/golocker/locker"
)

// holding is what the backend knows about a lock that it has granted. It is the Private of the Grant.
type holding struct {
	mu       sync.Mutex
	seq      uint64    // of the last record that is known to be the owner's
	since    time.Time // when the lock was asked for
	ends     time.Time // the latest end of a TTL that was asked for
	released bool      // a release was sent and not answered
}

func grant(token, seq uint64, start time.Time, ttl time.Duration) locker.Grant {
	return locker.Grant{Fence: token, Private: &holding{seq: seq, since: start, ends: start.Add(ttl)}}
}

// holdingOf returns the holding of a request. One of a caller that has lost it has no sequence number, and the record
// is read first.
func holdingOf(req locker.Request) *holding {
	if h, ok := req.Private.(*holding); ok {
		return h
	}
	return &holding{since: time.Now()}
}

// last returns the sequence number of the owner's last record.
func (h *holding) last() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seq
}

func (h *holding) saw(seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq = max(h.seq, seq)
}

// asks notes, before it is asked for, that the lock is to last until ends. Another extension of the same lock, which
// writes over the record of this one, must not shorten it, although this one's answer may not have come yet.
func (h *holding) asks(ends time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ends.After(h.ends) {
		h.ends = ends
	}
}

func (h *holding) end() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ends
}

// change calls write, which changes the store on the condition that the last record of the lock is still the one with
// the number that it gets, the owner's. write returns the number of the owner's record after that, or the same one if
// it has stored none. If the condition does not hold, change reads the record, and tries again if it is the owner's.
func (b *Backend) change(ctx context.Context, req locker.Request, write func(last uint64) (uint64, error)) error {
	h, subject := holdingOf(req), b.subject(req.Key)
	last := h.last()
	for n := 0; ; n++ {
		if last != 0 {
			seq, err := write(last)
			if err == nil {
				h.saw(seq)
				return nil
			}
			if !errors.Is(err, errOther) {
				return err
			}
		}
		r, err := b.settled(ctx, subject, last)
		switch {
		case errors.Is(err, errOther):
			if err := pause(ctx, n); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case r.State == held && r.Owner != req.Token, r.State == kept && r.Owner != req.Token, r.State == foreign:
			return &locker.NotHeldError{Reason: locker.LostTakenOver}
		case r.State != held && r.Owner == req.Token && h.gone():
			return errDone
		case r.State != held:
			return locker.ErrNotHeld
		}
		last = r.seq // an earlier extension was stored, and its answer was lost
		if err := pause(ctx, n); err != nil {
			return err
		}
	}
}

// errDone means that an earlier release, whose answer was lost, has released the lock.
var errDone = errors.New("released before")

// gone reports whether a release was sent that was not answered.
func (h *holding) gone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.released
}

// Extend implements [locker.Backend].
func (b *Backend) Extend(ctx context.Context, req locker.Request) error {
	if err := b.usable(); err != nil {
		return err
	}
	ctx, cancel := b.bounded(ctx, req.TTL)
	defer cancel()
	h, subject := holdingOf(req), b.subject(req.Key)
	now := time.Now()
	h.asks(now.Add(req.TTL))
	next := record{
		State: extended, Owner: req.Token, Label: req.Label, Fence: req.Fence, Age: now.Sub(h.since).Milliseconds(),
	}
	err := b.change(ctx, req, func(last uint64) (uint64, error) {
		next.ttl = h.end().Sub(now)
		return b.put(ctx, subject, last, next)
	})
	if errors.Is(err, errDone) {
		return locker.ErrNotHeld
	}
	return err
}

// Release implements [locker.Backend].
func (b *Backend) Release(ctx context.Context, req locker.Request) error {
	if err := b.usable(); err != nil {
		return err
	}
	bounded, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	err := b.release(bounded, req, time.Now().Add(req.Keep))
	if errors.Is(err, locker.ErrUnavailable) && b.usable() == nil {
		keepUntil := time.Now().Add(req.Keep)
		b.later(job{
			do: func(ctx context.Context) error {
				err := b.release(ctx, req, keepUntil)
				if errors.Is(err, locker.ErrNotHeld) {
					return nil
				}
				return err
			},
			until: time.Now().Add(max(req.TTL, req.Keep) + time.Second),
		})
	}
	return err
}

// release releases the lock. It stays taken until keepUntil, if req asks for that.
func (b *Backend) release(ctx context.Context, req locker.Request, keepUntil time.Time) error {
	h, subject := holdingOf(req), b.subject(req.Key)
	err := b.change(ctx, req, func(last uint64) (uint64, error) {
		next := record{State: free, Owner: req.Token, ttl: freeFor}
		if rest := time.Until(keepUntil); req.Keep > 0 && rest > 0 {
			next = record{State: kept, Owner: req.Token, Fence: req.Fence, ttl: rest}
		}
		seq, err := b.put(ctx, subject, last, next)
		switch {
		case err == nil && next.State == free:
			b.hints.put(subject, seq)
		case errors.As(err, new(unknown)):
			h.mu.Lock()
			h.released = true
			h.mu.Unlock()
		}
		return last, err // the new record is not the owner's, who must not replace it
	})
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}
