package locker

import (
	"context"

	"github.com/golocker/locker/backend"
)

// Wanted returns a channel that is closed when somebody else waits for the lock of lease. It is for holders that can
// stop early, such as long jobs: they save what they have done, unlock, and lock again, behind those that wait. The
// function that [Do] calls finds its lease with [LeaseFrom]:
//
//	lease, _ := locker.LeaseFrom(ctx)
//	for job.next() {
//		select {
//		case <-locker.Wanted(lease):
//			return job.save()
//		default:
//		}
//	}
//
// The channel is a hint, as far as the store tells:
//
//   - Other callers of the same [Client] count at once, on every store.
//   - On stores with TellsWanted of backend.Capabilities, callers of other Clients count at once, too.
//   - On stores with AnswersWanted, the answers to renewals tell of them, so it takes up to a third of the TTL. With
//     [NoRenewal], only Extend tells. On a store of several nodes, it may take a renewal more.
//   - Others do not tell of callers of other Clients.
//
// Callers of TryLock do not wait. A channel that is closed stays closed, although those that waited may have left.
// After the end of the lease, an open channel stays open. The lease of several locks is wanted when one of the locks
// is.
//
// A lease of which nobody asks this costs nothing. Wanted finds the lease behind middleware, as [Verify] does. If there
// is none that can tell, the channel is nil, which is never ready.
func Wanted(lease Lease) <-chan struct{} {
	if l, ok := LeaseAs[wantable](lease); ok {
		return l.Wanted()
	}
	return nil
}

// wantable is a Lease that tells when it is wanted.
type wantable interface{ Wanted() <-chan struct{} }

// wanted is whether others wait for the lock of a lease. A lease has it once somebody has asked.
type wanted struct {
	told chan struct{} // closed when others wait
	is   bool          // told is closed
}

// Wanted implements wantable.
func (l *lease) Wanted() <-chan struct{} {
	g := l.grant
	g.mu.Lock()
	begins := l.wanted == nil && l.err == nil
	if l.wanted == nil {
		l.wanted = &wanted{told: make(chan struct{})}
	}
	told := l.wanted.told
	g.mu.Unlock()
	if begins {
		l.heed()
	}
	return told
}

// want records that others wait for the lock, unless l has ended.
func (l *lease) want() {
	l.grant.mu.Lock()
	defer l.grant.mu.Unlock()
	if w := l.wanted; l.err == nil && w != nil && !w.is {
		w.is = true
		close(w.told)
	}
}

// isInWayOf reports whether the caller of q may have to wait for the lock of l, which is of a group.
func (l *lease) isInWayOf(q *keyQueue) bool {
	g := l.grant
	g.mu.Lock()
	defer g.mu.Unlock()
	switch kind := g.req.Group.Kind; {
	case kind == backend.Permit:
		return true
	case g.shares:
		return q.wants.Kind == backend.Exclusive
	default:
		return kind.Excludes(q.wants.Kind) && g.req.Token != q.wants.From
	}
}

// heed begins to watch for others that wait for the lock of l, until l ends.
func (l *lease) heed() {
	g := l.grant
	queues := &g.client.queues
	if queues.heed(l) {
		return
	}
	stop := func() {}
	if n, ok := g.client.backend.(backend.WantedNotifier); ok {
		stop = n.NotifyWanted(g.req, l.want)
	}
	var end context.CancelFunc = func() {
		queues.ignore(l)
		stop()
	}
	if !l.atEnd(&end) {
		end()
	}
}

// listener returns what an Extend calls if others wait. It is nil if nobody has asked, or if it is already known that
// others wait. Call with the mu of the grant held.
func (l *lease) listener() func() {
	if l.wanted == nil || l.wanted.is {
		return nil
	}
	return l.want
}
