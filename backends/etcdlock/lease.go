package etcdlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker/backend"
)

// lease is one of etcd, with which its entries end. Those of holders have leases that were never renewed: see move.
type lease struct {
	id      clientv3.LeaseID
	asks    int64     // the seconds that were asked for; etcd may grant more
	sent    time.Time // when the request was sent that set the end of the lease
	renewed bool      // a renewal may have been sent; so the lease must not become that of a holder

	// entries is how many entries have the lease, or may come to have it by requests that were not answered. When there
	// is none, it is revoked. A revocation deletes the entries of a lease, so one that counts too many does no harm: the
	// lease then ends by itself.
	entries atomic.Int32
}

// seconds returns d in whole seconds, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// end is a time before which the lease does not end.
func (l *lease) end() time.Time { return l.sent.Add(time.Duration(l.asks) * time.Second) }

// third is after which time a waiter renews its lease.
func (l *lease) third() time.Duration { return time.Duration(l.asks) * time.Second / 3 }

// left is how long it is until then, by the monotonic clock or by the wall clock, whichever is shorter: the monotonic
// clock stands still while the machine is suspended.
func (l *lease) left() time.Duration {
	end := l.end()
	return min(time.Until(end), time.Until(end.Round(0)))
}

// numbers are those of the leases of a backend. They grow, so that a request to move an entry has no effect after a
// later one. They are chosen here, and not by etcd, so that a lease can be ended of which etcd has not told.
type numbers struct {
	mu   sync.Mutex
	last int64
}

// next returns a number above all earlier ones. No other backend has it, because the first one and the steps are
// random. It is positive: etcd before 3.4.20 does not bear negative ones.
func (n *numbers) next() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.last == 0 {
		n.last = rand.Int64N(1 << 62)
	}
	n.last += 1 + rand.Int64N(1<<20)
	return n.last
}

// skip makes all further numbers greater than id, which may be of another backend.
func (n *numbers) skip(id clientv3.LeaseID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = max(n.last, int64(id))
}

// lease makes a lease for d from now, which a number of entries are to have.
func (b *store) lease(ctx context.Context, d time.Duration, entries int) (*lease, error) {
	return b.numbered(ctx, b.numbers.next(), d, entries)
}

// numbered is lease with a number that was drawn before.
func (b *store) numbered(ctx context.Context, id int64, d time.Duration, entries int) (*lease, error) {
	if ctx.Err() != nil {
		return nil, unavailable(ctx, ctx.Err()) // nothing was sent
	}
	l := &lease{id: clientv3.LeaseID(id), asks: seconds(d), sent: time.Now()}
	l.entries.Store(int32(entries))
	err := b.grant(ctx, int64(l.id), l.asks)
	switch {
	case isLookalike(err):
		return nil, err
	case err != nil:
		if !unexecuted(err) {
			b.forget(int64(l.id), d)
		}
		return nil, unavailable(ctx, err)
	}
	if err := b.keepsLeases(ctx); err != nil {
		if !isLookalike(err) {
			b.revoke(l)
		}
		return nil, err
	}
	return l, nil
}

func (b *store) grant(ctx context.Context, id, seconds int64) error {
	resp, err := b.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: id, TTL: seconds})
	if err == nil && resp.ID != id {
		return lookalike("it has granted a lease by another number than was asked for")
	}
	return err
}

// lateness is how late a request for a lease may arrive after its caller has given up, and still leave nothing behind.
const lateness = 10 * time.Second

// forget ends a lease in the background that etcd may have granted, or may grant later. If there is none, the number is
// taken for a while, and etcd refuses the request when it comes.
func (b *store) forget(id int64, longest time.Duration) {
	taken := false // the number may be taken by a request of this function, the answer to which was lost
	b.chores.Repeat(time.Now().Add(longest), func(ctx context.Context) error {
		for {
			_, err := b.leases.LeaseRevoke(undated{ctx}, &pb.LeaseRevokeRequest{ID: id})
			switch {
			case err == nil && taken: // which of the two was revoked is not known, so the number is taken again
				taken = false
				continue
			case !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound):
				return err
			}
			taken = true
			err = b.grant(undated{ctx}, id, seconds(lateness))
			switch {
			case errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseExist): // the request has come meanwhile
			case errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace): // so the request would be refused, too
				return nil
			default:
				return err
			}
		}
	})
}

// revoke ends a lease in the background, and the entries that it has at that time. A request that arrives later to
// write an entry with the lease is refused. So this undoes an attempt whose outcome is not known.
func (b *store) revoke(l *lease) {
	b.chores.Repeat(l.end(), func(ctx context.Context) error {
		_, err := b.leases.LeaseRevoke(undated{ctx}, &pb.LeaseRevokeRequest{ID: int64(l.id)})
		if errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
			return nil
		}
		return err
	})
}

// leave says that an entry has none of some leases any more, and will not come to have it.
func (b *store) leave(leases []*lease) {
	for _, l := range leases {
		if l.entries.Add(-1) == 0 {
			b.revoke(l)
		}
	}
}

// holding is the Private of a Grant: the lease of the lock's entry, which each extension replaces.
type holding struct {
	revision  int64         // at which the entry was created; 0: not known
	extending chan struct{} // has a value while an Extend is in progress

	mu      sync.Mutex
	place   *place   // what the entry says, if it is one of a group; nil: not known
	current *lease   // which the entry was seen to have last; nil: not known
	leases  []*lease // which the entry has, or may come to have: the current one, and those of moves without an answer
}

// beginExtend waits until no other Extend of the lock is in progress.
func (h *holding) beginExtend(ctx context.Context) error {
	select {
	case h.extending <- struct{}{}:
		return nil
	case <-ctx.Done():
		return unavailable(ctx, ctx.Err())
	}
}

func (h *holding) endExtend() { <-h.extending }

// has returns the lease that the entry was seen to have last, or nil if it is not known.
func (h *holding) has() *lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current
}

// is says what the entry of a group is.
func (h *holding) is(p place) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.place = &p
}

// what returns what the entry of a group is, or nil if that is not known.
func (h *holding) what() *place {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.place
}

// mayHave says that the entry may come to have a lease.
func (h *holding) mayHave(l *lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leases = append(h.leases, l)
}

// moved says that the entry was moved to a lease. It returns the leases that it will not come to have any more: a
// request to move it to one with a smaller number has no effect from now on.
func (h *holding) moved(l *lease) (left []*lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == nil || l.id > h.current.id {
		h.current = l
	}
	return h.without(func(other *lease) bool { return other.id < l.id })
}

// refused says that the entry was not moved to a lease, and will not be. It returns the lease.
func (h *holding) refused(l *lease) (left []*lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.without(func(other *lease) bool { return other == l })
}

// ended says that there is no entry any more. It returns all leases that it may have had.
func (h *holding) ended() (left []*lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.without(func(*lease) bool { return true })
}

// without removes leases, and returns them. Call with mu held.
func (h *holding) without(goes func(*lease) bool) (gone []*lease) {
	var stay []*lease
	for _, l := range h.leases {
		if goes(l) {
			gone = append(gone, l)
		} else {
			stay = append(stay, l)
		}
	}
	h.leases = stay
	return gone
}

// holdingOf returns what Extend and Release know of a lock.
func holdingOf(req backend.Request) *holding {
	if h, ok := req.Private.(*holding); ok {
		return h
	}
	return newHolding(0, nil) // the lease is unknown: the entry tells it
}

func newHolding(revision int64, l *lease) *holding {
	h := &holding{revision: revision, extending: make(chan struct{}, 1), current: l}
	if l != nil {
		h.leases = []*lease{l}
	}
	return h
}
