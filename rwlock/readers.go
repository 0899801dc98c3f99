package rwlock

import (
	"context"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/ending"
	"github.com/golocker/locker/internal/several"
	"github.com/golocker/locker/lockertrace"
)

// Newcomers share a slot for fresh after the store has granted it, even if a writer waits. If nobody waits, as far as
// the store tells, they share it for a part of the TTL. That is a limit because some stores tell late, or never.
const (
	fresh     = 50 * time.Millisecond
	sharePart = 20
)

// readers is what the readers of one key and one RWLock have in common.
type readers struct {
	calls   int                // in progress
	current *locks             // that newcomers may share; nil if there is none
	flights map[string]*flight // that acquire a slot for all who come meanwhile, by the operation
}

// flight is an acquisition of a slot by one caller, which others wait for.
type flight struct {
	call  *several.Call // what it knows of the store
	began time.Time
	done  chan struct{}

	// The following are guarded by the mu of the RWLock until done is closed, except waiting.
	waiting int    // callers that share what it gets
	locks   *locks // what it has got; each of the callers is counted in its users
	err     error  // why it has failed, if that is not for a reason of its caller only
}

// share acquires a slot, or shares one with other readers of the process. The calls have no options, so that what is
// right for one is right for all.
func (rw *RWLock) share(
	ctx context.Context, op, key string, get acquire,
) (locker.Lease, error) {
	call := new(several.Call)
	if waits, _ := several.From(ctx).Seen(false, 0); waits {
		call.Wait()
	}
	ctx = call.With(ctx)
	defer call.End()
	r := rw.enter(key)
	defer rw.exit(key, r)
	for tries := 0; ; tries++ {
		if k := rw.join(r); k != nil {
			return rw.sharing(ctx, key, k), nil
		}
		f, leads := rw.board(r, call, op)
		if leads {
			return rw.fly(ctx, r, f, op, key, get)
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			if !rw.alight(f) {
				return nil, about(op, key, f.unfinished(ctx))
			}
		}
		switch {
		case f.locks != nil:
			return rw.sharing(ctx, key, f.locks), nil
		case f.err != nil && tries > 0: // it began after this call
			return nil, f.err
		}
	}
}

// sharing returns a lease for a caller that is counted in the users of k.
func (rw *RWLock) sharing(ctx context.Context, key string, k *locks) locker.Lease {
	l := newHold(rw, shared, key, nil, k)
	l.trace = lockertrace.From(ctx)
	return l
}

func (rw *RWLock) enter(key string) *readers {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	r := rw.readers[key]
	if r == nil {
		r = &readers{flights: make(map[string]*flight)}
		rw.readers[key] = r
	}
	r.calls++
	return r
}

func (rw *RWLock) exit(key string, r *readers) {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	r.calls--
	rw.tidy(key)
}

// tidy forgets a key that nobody reads. Call with mu held.
func (rw *RWLock) tidy(key string) {
	if r := rw.readers[key]; r != nil && r.calls == 0 && (r.current == nil || r.current.users == 0) {
		delete(rw.readers, key)
	}
}

// join returns the current locks and counts the caller in their users, if a newcomer may share them.
func (rw *RWLock) join(r *readers) *locks {
	rw.mu.Lock()
	k := r.current
	rw.mu.Unlock()
	if k == nil || !k.joinable() { // which runs hooks
		return nil
	}
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if k.users == 0 {
		return nil
	}
	k.users++
	return k
}

// joinable reports whether a newcomer may share k: it is fresh, or nobody waits for it.
func (k *locks) joinable() bool {
	age := time.Since(k.granted)
	if k.all.Err() != nil || age <= fresh {
		return k.all.Err() == nil
	}
	ttl, ok := locker.LeaseAs[interface{ TTL() time.Duration }](k.all)
	if !ok || age > ttl.TTL()/sharePart {
		return false
	}
	select {
	case <-k.wanted():
		return false
	default:
		return k.wanted() != nil
	}
}

// board returns the flight of op. If there was none, the caller leads the new one, and otherwise it is counted in
// waiting.
func (rw *RWLock) board(r *readers, call *several.Call, op string) (f *flight, leads bool) {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if rw.alone {
		return &flight{call: call, done: make(chan struct{})}, true
	}
	f = r.flights[op]
	if f != nil {
		f.waiting++
		return f, false
	}
	f = &flight{call: call, began: time.Now(), done: make(chan struct{})}
	r.flights[op] = f
	return f, true
}

// alight ends the wait of a caller for f. It returns true if f has ended at the same moment.
func (rw *RWLock) alight(f *flight) bool {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	select {
	case <-f.done:
		return true
	default:
		f.waiting--
		return false
	}
}

// fly acquires a slot for the caller, and for those that wait for f.
func (rw *RWLock) fly(
	ctx context.Context, r *readers, f *flight, op, key string, get acquire,
) (lease locker.Lease, err error) {
	var k *locks
	defer func() { // also if a hook panics
		rw.mu.Lock()
		defer rw.mu.Unlock()
		switch {
		case k == nil:
			if ctx.Err() == nil {
				f.err = err
			}
		case f.call.Shareable():
			f.locks, r.current = k, k
			k.users += f.waiting
		default:
			rw.alone = true
		}
		if r.flights[op] == f {
			delete(r.flights, op)
		}
		close(f.done)
	}()
	if k, err = rw.get(ctx, key, get, nil, 1, "gate"); err != nil {
		return nil, err
	}
	return newHold(rw, shared, key, nil, k), nil
}

// unfinished returns the error of a call whose context has ended while it waited for f.
func (f *flight) unfinished(ctx context.Context) error {
	end := ending.Why(ctx, ctx.Err())
	held, _ := f.call.Seen(false, 0)
	switch {
	case held:
		return fmt.Errorf("%w: %w", end, locker.ErrHeld)
	case time.Since(f.began) >= time.Second: // as a contact that is unanswered for so long
		return fmt.Errorf("%w: %w", end, errSilent)
	}
	return end
}

var errSilent = fmt.Errorf("%w: it has not answered yet", locker.ErrUnavailable)
