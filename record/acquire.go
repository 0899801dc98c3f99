package record

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// attempt is one attempt to acquire a lock.
//
// It writes the lock over a record of a known version: one that says that the lock is free, one whose time is over, or
// none. If the outcome of that write is unknown, it is in doubt. A refusal does not end the doubt: a client library may
// have repeated the request, and report the success of the first one as a conflict. Nor does the end of the context,
// because the store may execute the request at any later time. The doubt ends only when another version is seen. That
// version is the attempt's own record, or it proves that the write can never take effect: the version that it expects
// does not come back, because no text is written twice.
//
// If the attempt fails in doubt, it is undone by writing another record over the same version. One of the two is
// stored, and the other one is refused, whichever arrives first.
type attempt struct {
	*Backend
	req   backend.Request
	name  string
	start time.Time
	left  time.Duration // until a lock that is held counts as free
	owner string        // of a lock that is held

	misses int     // how many times it has written its lock, to end too early
	doubt  bool    // a write was sent, and another version was not seen since
	over   string  // the version that it expects; empty: no record
	lock   content // what it writes
}

// Acquire implements [backend.Backend].
func (b *Backend) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, _, _, err := b.acquire(ctx, req, req.TTL)
	return g, err
}

// acquire makes one attempt, for limit at most. If the lock is held, left is how long it is until it counts as free.
func (b *Backend) acquire(
	ctx context.Context, req backend.Request, limit time.Duration,
) (g backend.Grant, left time.Duration, owner string, err error) {
	if err := b.usable(); err != nil {
		return backend.Grant{}, 0, "", err
	}
	if err := b.chores.Backlog(); err != nil {
		return backend.Grant{}, 0, "", unavailable(err)
	}
	t, err := asked(ctx, req)
	if err != nil {
		return backend.Grant{}, 0, "", err
	}
	ctx, cancel := b.bounded(ctx, min(limit, req.TTL))
	defer cancel()
	if t != nil {
		g, left, err = b.claim(ctx, req, t)
		return g, left, "", err
	}
	a := &attempt{Backend: b, req: req, name: b.nameOf(req.Key), start: time.Now()}
	defer func() {
		if a.doubt {
			a.undoLater()
		}
	}()
	g, err = a.run(ctx)
	return g, a.left, a.owner, err
}

func (a *attempt) run(ctx context.Context) (backend.Grant, error) {
	found, known := a.seen.hint(a.name)
	denied := 0
	for n := 0; ; n++ {
		if !known {
			var err error
			if found, err = a.read(ctx, a.name); err != nil {
				return backend.Grant{}, err
			}
			if a.doubt && found.version != a.over {
				a.doubt = false
			}
		}
		known = false
		own := found.State == held && found.Owner == a.req.Token
		if own && found.is(a.lock.Nonce) && a.covers(&found.content, found.length(), found.at) {
			return a.granted(found), nil
		}
		// A version whose time was over stays so for an attempt that has written over it, although a clock that is behind
		// may answer now: an attempt in doubt is undone, and its caller must not acquire with the same token meanwhile.
		over := a.doubt && found.version == a.over
		if a.left = found.left(); !own && !over && a.left > 0 {
			a.owner = found.Owner
			held := found.heldError(a.left)
			found = a.adopt(ctx, a.name, found)
			held.Seen = found.watched()
			return backend.Grant{}, held
		}
		written, err := a.take(ctx, found, own)
		switch {
		case err == nil:
			found, known = written, true // and see whether it lasts
			continue
		case !errors.Is(err, ErrConflict):
			return backend.Grant{}, err
		}
		if found.version != "" {
			denied = 0
		} else if denied++; denied == maxDenied {
			return backend.Grant{}, errDenied
		}
		if err := pause(ctx, n); err != nil {
			return backend.Grant{}, err
		}
	}
}

// maxDenied is how many times in a row a store may say that there is no record, and refuse to create it because there
// is one. If others create and delete it, that may be so, but not often.
const maxDenied = 8

var errDenied = fmt.Errorf("%w: the store refuses to create the record, because there is one, and says that there is "+
	"none: see what deletes records, such as the delete marker of a bucket with versions, and whether reads are fresh",
	locker.ErrUnavailable)

// take writes the lock over a record that does not keep it from that. If the record is of an earlier call with the same
// token, as of a request that was sent twice, the lock keeps its tokens, and gets its whole TTL again.
func (a *attempt) take(ctx context.Context, found entry, own bool) (entry, error) {
	a.lock = content{State: held, Owner: a.req.Token, Label: a.req.Label, Length: milliseconds(a.req.TTL)}
	var mine *content
	if own {
		mine = &found.content
		a.misses++
		a.lock.Token, a.lock.Last, a.lock.Over = found.Token, found.Last, found.Over
		a.lock.Length = max(a.lock.Length, found.Length)
	} else {
		// What makes tokens grow is the last one in the record. The clock makes it likely that they grow from key to key,
		// too, as those of readers and writers should, and over the deletion of a record.
		a.lock.Token = max(found.Last+1, uint64(max(1, time.Now().UnixMicro())))
		a.lock.Last, a.lock.Over = a.lock.Token+uint64(max(1, a.req.Fences))-1, found.before()
	}
	if a.lock.Last > maxToken {
		return entry{}, errTokens(found.Last)
	}
	a.doubt, a.over = true, found.version
	written, err := a.write(ctx, a.name, a.over, &a.lock, mine, a.misses)
	if err == nil {
		a.doubt = false
	}
	return written, err
}

func errTokens(last uint64) error {
	return fmt.Errorf("%w: tokens end at 2⁵³, and the record has %d: delete it while nobody has the lock",
		locker.ErrUnavailable, last)
}

func (a *attempt) granted(e entry) backend.Grant {
	h := &holding{own: e, since: a.start, ends: a.start.Add(a.req.TTL)}
	return backend.Grant{Fence: e.Token, Fences: int(e.Last - e.Token + 1), Private: h}
}

// heldError describes who has the lock. left is how long it is until it counts as free.
func (e *entry) heldError(left time.Duration) *locker.HeldError {
	err := &locker.HeldError{Remaining: min(left, e.length())}
	if e.State == held {
		err.Label = e.Label
	}
	return err
}

// undoLater undoes the attempt in the background.
func (a *attempt) undoLater() {
	b, name, over, lock := a.Backend, a.name, a.over, a.lock
	b.chores.Repeat(a.start.Add(a.req.TTL+cleanupTime), func(ctx context.Context) error {
		return b.undo(ctx, name, over, lock)
	})
}

// undo makes sure that writing lock over the record with the version over has no effect, now or later. A nil error
// means that this is so. What it writes instead has the tokens of the attempt behind it, so nobody else gets them.
func (b *Backend) undo(ctx context.Context, name, over string, lock content) error {
	for n := 0; ; n++ {
		instead := content{State: free, Owner: lock.Owner, Last: lock.Last, Over: lock.Over}
		_, err := b.write(ctx, name, over, &instead, nil, 0)
		if !errors.Is(err, ErrConflict) {
			return err
		}
		found, err := b.read(ctx, name)
		switch {
		case errors.Is(err, locker.ErrForeignKey):
			return nil
		case err != nil:
			return err
		case found.State == held && found.Owner == lock.Owner:
			over, lock.Last = found.version, found.Last // of the attempt, which is now released
		case found.version != over:
			return nil // the attempt can never take effect
		}
		if err := pause(ctx, n); err != nil {
			return err
		}
	}
}
