package nats

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker"
)

// Acquire implements [locker.Backend].
//
// A lock is only ever written over a record of a known sequence number: a free one, which is written first if there is
// none, or one whose time is over, see sighting. The store itself has given that number to this Backend, in the answer
// to a read or to a write. A number that a message of the news has is never used, because others may send such
// messages.
//
// So an attempt whose outcome is unknown can be undone for good: either it is stored, or the clean-up overwrites that
// record, and the attempt can never be stored any more, however late it arrives. See [Backend.undo].
//
// While the servers of a cluster connect to each other anew, a message may arrive twice. The refusal of the second one
// may then be the answer, although the first one is stored. So a refusal proves nothing until a newer record is seen.
func (b *Backend) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if err := b.usable(); err != nil {
		return locker.Grant{}, err
	}
	ctx, cancel := b.bounded(ctx, req.TTL)
	defer cancel()
	subject, start := b.subject(req.Key), time.Now()
	lock := record{State: held, Owner: req.Token, Label: req.Label, ttl: req.TTL}
	last := b.hints.get(subject)
	// Somebody waits here, so there is a record, most likely: read it first.
	look := last == 0 && b.news.waited(b.toldOf(subject))
	var doubt uint64 // the record over which the lock may have been written; 0: there is none
	defer func() {
		if doubt != 0 {
			b.undoLater(req, doubt, start)
		}
	}()
	for n := 0; ; n++ {
		var err error
		if last == 0 && !look {
			last, err = b.put(ctx, subject, 0, record{State: free, ttl: freeFor})
		}
		if err == nil && !look {
			var seq uint64
			seq, err = b.put(ctx, subject, last, lock)
			switch {
			case err == nil:
				doubt = 0
				return grant(seq, seq, start, req.TTL), nil
			case errors.Is(err, errOther) || errors.As(err, new(unknown)):
				doubt = max(doubt, last) // a smaller number is that of an old record, which nothing is written over
			}
		}
		if err != nil && !errors.Is(err, errOther) {
			return locker.Grant{}, err
		}
		r, err := b.get(ctx, subject)
		if err == nil && r.seq > doubt {
			doubt = 0
		}
		switch {
		case err != nil:
			return locker.Grant{}, err
		case r.State == foreign:
			return locker.Grant{}, locker.ErrForeignKey
		case r.State == held && r.Owner == req.Token: // the same request was executed before
			return grant(r.token(), r.seq, start, req.TTL), nil
		case r.taken() && !r.overdue:
			return locker.Grant{}, r.heldError()
		}
		last = r.seq
		if look {
			look, n = false, -1
		} else if err := pause(ctx, n); err != nil {
			return locker.Grant{}, err
		}
	}
}

// pause waits before a change is tried again, the n-th time. The first time it does not wait.
func pause(ctx context.Context, n int) error {
	if n == 0 {
		return ctxError(ctx)
	}
	t := time.NewTimer(min(time.Millisecond<<min(n, 10), 50*time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctxError(ctx)
	}
}

func ctxError(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// undoLater undoes, in the background, an attempt that began at start and whose outcome is unknown.
func (b *Backend) undoLater(req locker.Request, last uint64, start time.Time) {
	b.later(job{
		do:    func(ctx context.Context) error { return b.undo(ctx, b.subject(req.Key), last, req.Token) },
		until: start.Add(req.TTL + freeFor + b.timeout),
	})
}

// undo makes sure that an attempt of token to write over the record last, which was free or overdue, has no effect, now
// or later. A nil error means that this is so.
func (b *Backend) undo(ctx context.Context, subject string, last uint64, token string) error {
	unlocked := record{State: free, Owner: token, ttl: freeFor}
	for n := 0; ; n++ {
		_, err := b.put(ctx, subject, last, unlocked)
		if !errors.Is(err, errOther) {
			return err
		}
		r, err := b.settled(ctx, subject, last)
		switch {
		case errors.Is(err, errOther):
		case err != nil:
			return err
		case r.State == held && r.Owner == token:
			last = r.seq // of the attempt, which is now released
		case r.seq != last:
			return nil // the attempt can never be stored now
		}
		if err := pause(ctx, n); err != nil {
			return err
		}
	}
}
