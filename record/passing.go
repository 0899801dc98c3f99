package record

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// Export implements [backend.Exporter]. It writes another owner over the record of the lock, so what the exporter has
// sent before, or sends later, does not find its record.
//
// Nobody relies on the lock until it is resumed. So its end may get earlier, unlike that of an owner; see stamp.
func (b *Backend) Export(ctx context.Context, req backend.Request, to string) error {
	if err := b.usable(); err != nil {
		return err
	}
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	h, now := holdingOf(req), time.Now()
	r := b.renewal(req, h, func(own entry) content {
		return content{
			State: held, Owner: to, Label: own.Label, Token: own.Token, Last: own.Last, Length: milliseconds(req.TTL),
			Age: now.Sub(h.since).Milliseconds(),
		}
	})
	r.passes = to
	err := b.change(ctx, r)
	if errors.Is(err, errReleased) {
		return locker.ErrNotHeld
	}
	return err
}

// Resume implements [backend.Exporter]. It is an attempt that writes over the record of the text, and over no other
// one. What undoes it writes that the lock is free over the record that the attempt expects, so nobody can use the text
// again. If others have adopted that record meanwhile, the attempt can take effect no more, and the text is left.
//
// Without a clock, a process that sees the lock for the first time cannot tell that the text's time is over, as it
// could not tell it of a holder that has crashed. It resumes the lock if nobody has taken it since, because that would
// be another record.
func (b *Backend) Resume(ctx context.Context, req backend.Request, from string) (backend.Grant, error) {
	p := b.placeOf(req.Key)
	a := &attempt{Backend: b, reqs: []backend.Request{req}, at: []string{p.at}, from: from}
	if err := b.attempt(ctx, a, p, req.TTL, nil); err != nil {
		return backend.Grant{}, err
	}
	return *a.grants[0], nil
}

// resume writes the lock over that of the text, or makes the attempt fail.
func (a *attempt) resume(found []entry) []change {
	switch e := &found[0]; {
	case e.left() == 0:
		a.err = locker.ErrNotHeld
	case e.State == held && e.Owner == a.from:
		return a.take(found, []int{0})
	default:
		a.err = &locker.NotHeldError{Reason: locker.LostTakenOver}
	}
	return nil
}
