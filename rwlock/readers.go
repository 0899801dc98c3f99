package rwlock

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/several"
	"github.com/golocker/locker/lockertrace"
)

// Newcomers share a slot without a question for fresh after the store was asked about it, or soon after a wait for it,
// because then there are writers. The pause between two questions doubles from there. All in all, they share a slot for
// a part of the TTL, and for maxShare at most, because some stores tell late that a writer waits, or never.
const (
	fresh     = 50 * time.Millisecond
	soon      = 10 * time.Millisecond
	sharePart = 20
	maxShare  = 500 * time.Millisecond
)

// readers is what the readers of one key and one RWLock have in common.
type readers struct {
	calls   int                // in progress
	current *locks             // that newcomers may share; nil if there is none
	flights map[string]*flight // that newcomers wait for, by the operation
}

// share acquires a slot, or shares one with other readers of the process. The calls have no options, so that what is
// right for one is right for all.
func (rw *RWLock) share(ctx context.Context, op, key string, get acquire) (locker.Lease, error) {
	r := rw.enter(key)
	defer rw.exit(key, r)
	for tries := 0; ; tries++ {
		if k := rw.join(r); k != nil {
			return rw.sharing(ctx, key, k), nil
		}
		f, began := rw.board(ctx, r, op, key, get)
		select {
		case <-f.done:
		case <-ctx.Done():
			if rw.alight(ctx, r, f, op) {
				return nil, about(op, key, f.unfinished(ctx))
			}
			<-f.done
		}
		if waits, _ := f.call.Seen(false, 0); waits {
			several.From(ctx).Wait()
		}
		if began && f.panicked != nil {
			panic(f.panicked)
		}
		k := rw.take(f)
		switch {
		case k != nil && began && !f.shared: // whose lock has the hooks of this call
			return newHold(rw, shared, key, nil, k), nil
		case k != nil:
			return rw.sharing(ctx, key, k), nil
		case f.settles(ctx, began || tries > 0):
			return nil, f.err
		}
	}
}

// sharing returns a lease for a caller that is counted in the users of k.
func (rw *RWLock) sharing(ctx context.Context, key string, k *locks) locker.Lease {
	l := newHold(rw, shared, key, nil, k)
	if l.trace = lockertrace.From(ctx); l.trace != nil && l.trace.Lost != nil {
		rw.mu.Lock()
		if k.told == nil {
			k.told = make(map[*hold]bool)
		}
		k.told[l] = true
		rw.mu.Unlock()
		_ = l.Err() // if it was lost before
	}
	return l
}

// tell tells the readers that share what f has got if it is lost.
func (rw *RWLock) tell(f *flight) {
	rw.mu.Lock()
	var told []*hold
	if f.locks != nil {
		told = slices.Collect(maps.Keys(f.locks.told))
	}
	rw.mu.Unlock()
	for _, l := range told {
		_ = l.Err() // it runs hooks
	}
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

// join returns the current locks and counts the caller in their users, if a newcomer may share them without a question.
func (rw *RWLock) join(r *readers) *locks {
	k, quiet := rw.now(r)
	if k == nil || k.judge(quiet) != joinNow {
		return nil
	}
	return rw.use(k)
}

// now returns the current locks, and until when newcomers share them without a question.
func (rw *RWLock) now(r *readers) (k *locks, quiet time.Time) {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if r.current == nil {
		return nil, time.Time{}
	}
	return r.current, r.current.quiet
}

// use counts a caller in the users of k, and returns k, or nil if the last one has unlocked.
func (rw *RWLock) use(k *locks) *locks {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if k.users == 0 {
		return nil
	}
	k.users++
	return k
}

// verdict is whether a newcomer may share locks.
type verdict int

const (
	acquireAnew verdict = iota
	askFirst            // the store knows whether somebody waits for them
	joinNow
)

// judge returns whether a newcomer may share k. It runs hooks, so call it without the mutex.
func (k *locks) judge(quiet time.Time) verdict {
	if k.all.Err() != nil {
		return acquireAnew
	}
	if time.Now().Before(quiet) {
		return joinNow
	}
	if k.wanted() == nil || k.isWanted() || k.old() {
		return acquireAnew
	}
	if of, ok := locker.LeaseAs[interface{ AsksWanted() bool }](k.all); ok && of.AsksWanted() {
		return askFirst
	}
	return joinNow
}

// old reports whether newcomers have shared k for long enough.
func (k *locks) old() bool {
	l, ok := locker.LeaseAs[interface{ TTL() time.Duration }](k.all)
	return !ok || time.Since(k.granted) > min(l.TTL()/sharePart, maxShare)
}

func (k *locks) isWanted() bool {
	select {
	case <-k.wanted():
		return true
	default:
		return false
	}
}

// rest makes pause the time without a question after one at asked. Call with the mutex held.
func (k *locks) rest(asked time.Time, pause time.Duration) {
	k.pause = min(pause, fresh)
	if quiet := asked.Add(k.pause); quiet.After(k.quiet) {
		k.quiet = quiet
	}
}

// ask returns the current locks, and counts one in their users, if newcomers may share them. It asks the store if that
// is not known: the answer to Extend says whether somebody waits. If it comes too late, because the last user has
// unlocked, or not at all, they are not shared.
func (rw *RWLock) ask(ctx context.Context, r *readers) *locks {
	k, quiet := rw.now(r)
	if k == nil {
		return nil
	}
	switch k.judge(quiet) {
	case joinNow: // another flight has asked
		return rw.use(k)
	case acquireAnew:
		return nil
	}
	asked := time.Now()
	if err := k.all.Extend(ctx); err != nil || k.isWanted() || k.old() { // the answer may be late
		return nil
	}
	rw.mu.Lock()
	k.rest(asked, 2*k.pause)
	rw.mu.Unlock()
	return rw.use(k)
}
