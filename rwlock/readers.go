package rwlock

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/lockertrace"
)

// Newcomers share a slot without a question for fresh after the store was asked about it, or soon after a wait for it,
// because then there are writers. The pause between two questions doubles from there. Some stores tell late that
// somebody waits for a slot, or never. So newcomers look at the gate, too, when a part of the TTL is over, or maxShare.
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
func (rw *RWLock) share(ctx context.Context, op, key string) (locker.Lease, error) {
	r := rw.enter(key)
	defer rw.exit(key, r)
	for tries := 0; ; tries++ {
		if k := rw.join(r); k != nil {
			return rw.sharing(ctx, key, k), nil
		}
		f, began := rw.board(ctx, r, op, key)
		select {
		case <-f.done:
		case <-ctx.Done():
			if rw.alight(ctx, r, f, op) {
				return nil, about(op, key, f.unfinished(ctx))
			}
			<-f.done
		}
		if waits, _ := f.call.Seen(false, 0); waits {
			several.CallFrom(ctx).Wait()
		}
		k := rw.take(f)
		if began && f.panicked != nil {
			if k != nil { // others go on to share it
				_ = newHold(rw, shared, key, nil, k).Unlock(ctx)
			}
			panic(f.panicked)
		}
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
	k, quiet, looked := rw.now(r)
	if k == nil || rw.judge(k, quiet, looked) != joinNow {
		return nil
	}
	return rw.use(k)
}

// now returns the current locks, until when newcomers share them without a question, and when the gate was looked at.
func (rw *RWLock) now(r *readers) (k *locks, quiet, looked time.Time) {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if k = r.current; k != nil {
		quiet, looked = k.quiet, k.looked
	}
	return k, quiet, looked
}

// use counts a caller in the users of k, and returns k, or nil if the last one has unlocked, or the Client drains: it
// would not end then as long as readers come.
func (rw *RWLock) use(k *locks) *locks {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	select {
	case <-rw.drains:
		return nil
	default:
	}
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
	askFirst            // an Extend tells whether somebody waits for them
	lookFirst           // the gate tells whether somebody waits for the key
	joinNow
)

// judge returns whether a newcomer may share k. It runs hooks, so call it without the mutex.
func (rw *RWLock) judge(k *locks, quiet, looked time.Time) verdict {
	if k.all.Err() != nil {
		return acquireAnew
	}
	if time.Now().Before(quiet) {
		return joinNow
	}
	if k.entry {
		switch {
		case k.isWanted():
			return acquireAnew // which waits behind those that want it
		case !rw.tells || k.wanted() == nil || k.late(looked):
			return askFirst
		}
		return joinNow
	}
	if k.wanted() == nil || k.isWanted() || k.late(looked) {
		return lookFirst
	}
	if rw.asks {
		return askFirst
	}
	return joinNow
}

// late reports whether what was known at seen is too long ago to share k without a look at the gate.
func (k *locks) late(seen time.Time) bool {
	return time.Since(seen) > min(cmp.Or(k.ttl()/sharePart, maxShare), maxShare)
}

// ttl returns the TTL of the slot, or 0 if it is not known.
func (k *locks) ttl() time.Duration {
	if l, ok := locker.LeaseAs[interface{ TTL() time.Duration }](k.all); ok {
		return l.TTL()
	}
	return 0
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

// calm records that no writer waited at asked, and that the gate was looked at last at looked.
func (rw *RWLock) calm(k *locks, asked, looked time.Time) {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	k.looked = looked
	k.rest(asked, 2*k.pause)
}

// ask returns the current locks, and counts one in their users, if newcomers may share them. It asks the store if that
// is not known: the answer to Extend says whether somebody waits, and the gate for what. If it comes too late, because
// the last user has unlocked, or not at all, they are not shared.
func (rw *RWLock) ask(ctx context.Context, r *readers, key string) *locks {
	k, quiet, looked := rw.now(r)
	if k == nil {
		return nil
	}
	asked := time.Now()
	verdict := rw.judge(k, quiet, looked)
	if verdict == askFirst && k.entry {
		var x several.Extension
		if err := k.all.Extend(x.With(ctx)); err != nil || !x.Heard() || x.Wanted() || k.late(asked) {
			return nil
		}
		rw.calm(k, asked, asked)
		return rw.use(k)
	}
	if verdict == askFirst {
		if err := k.all.Extend(ctx); err != nil {
			return nil
		}
		if verdict = lookFirst; !k.isWanted() && !k.late(asked) {
			verdict = joinNow
			rw.calm(k, asked, looked)
		}
	}
	switch verdict {
	case joinNow: // perhaps another flight has asked
		return rw.use(k)
	case lookFirst:
		return rw.look(ctx, key, k)
	default:
		return nil
	}
}

// look asks the gate whether newcomers may share k, and counts one in the users of k then. If nobody is known to wait
// for the slot, it keeps the slot meanwhile, because newcomers would have to acquire another one after the answer.
func (rw *RWLock) look(ctx context.Context, key string, k *locks) *locks {
	var kept *hold
	if !k.isWanted() && rw.use(k) != nil {
		kept = newHold(rw, shared, key, nil, k)
	}
	closed := true
	defer func() { // also if a middleware or a hook panics
		if closed && kept != nil {
			_ = kept.Unlock(ctx)
		}
	}()
	asked := time.Now()
	if closed = rw.isClosed(ctx, key, k); closed {
		return nil
	}
	rw.calm(k, asked, asked)
	if kept != nil {
		return k
	}
	return rw.use(k)
}

// isClosed reports whether newcomers must not share k without the gate, because others wait for the key. Whoever waits
// for slots has the gate. If it has the intent lock, too, it is a writer, or waits beside an upgradeable holder. A
// reader that waits, because all slots are taken, gains nothing if newcomers wait as well. But it would wait for ever
// if those that have slots shared them for ever, so its turn comes when the gate was taken for the TTL of the slot.
func (rw *RWLock) isClosed(ctx context.Context, key string, k *locks) bool {
	g := rw.group(key)
	taken, now := g.Taken(ctx, name(key, "gate"), k.number), time.Now()
	rw.mu.Lock()
	if !taken {
		k.blocked = time.Time{}
	} else if k.blocked.IsZero() {
		k.blocked = now
	}
	long := taken && now.Sub(k.blocked) > k.ttl()
	rw.mu.Unlock()
	return long || taken && g.Taken(ctx, name(key, "intent"), k.number)
}

// isRead reports whether readers have the current locks.
func (rw *RWLock) isRead(r *readers) bool {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	return r.current != nil && r.current.users > 0
}

// inherit returns the current locks, and counts a caller that has the gate in their users, or nil. Whoever has needed
// the slot has had the gate before and got the slot. So if it is still held, newcomers may share it.
func (rw *RWLock) inherit(r *readers) *locks {
	k, _, _ := rw.now(r)
	if k == nil || k.all.Err() != nil {
		return nil
	}
	return rw.use(k)
}
