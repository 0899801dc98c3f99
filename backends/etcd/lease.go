package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
)

// ttl is a lease of etcd, with which one entry ends.
type ttl struct {
	id   clientv3.LeaseID
	asks int64     // the seconds that were asked for; etcd may grant more
	sent time.Time // when the request was sent that set the end of the lease
}

// seconds returns d in whole seconds, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// end is a time before which the lease does not end.
func (l ttl) end() time.Time { return l.sent.Add(time.Duration(l.asks) * time.Second) }

// left is how long it is until then, by the monotonic clock or by the wall clock, whichever is shorter: the monotonic
// clock stands still while the machine is suspended.
func (l ttl) left() time.Duration {
	end := l.end()
	return min(time.Until(end), time.Until(end.Round(0)))
}

// lease makes a lease for d from now. Its number is chosen here, and not by etcd, so that a lease can be ended of which
// etcd has not told.
func (b *backend) lease(ctx context.Context, d time.Duration) (ttl, error) {
	l := ttl{asks: seconds(d), sent: time.Now()}
	if ctx.Err() != nil {
		return l, unavailable(ctx, ctx.Err()) // nothing was sent
	}
	id := newLeaseID()
	err := b.grant(ctx, id, l.asks)
	switch {
	case isLookalike(err):
		return l, err
	case err != nil:
		if !unexecuted(err) {
			b.forget(id, d)
		}
		return l, unavailable(ctx, err)
	}
	if err := b.keepsLeases(ctx); err != nil {
		if !isLookalike(err) {
			b.revoke(ttl{id: clientv3.LeaseID(id)}, d)
		}
		return l, err
	}
	l.id = clientv3.LeaseID(id)
	return l, nil
}

func (b *backend) grant(ctx context.Context, id, seconds int64) error {
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
func (b *backend) forget(id int64, longest time.Duration) {
	taken := false // the number may be taken by a request of this function, the answer to which was lost
	b.cleanup.add(time.Now().Add(longest), func(ctx context.Context) error {
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

// revoke ends a lease in the background, and the entry that it has at that time. A request that arrives later to write
// an entry with the lease is refused. So this undoes an attempt whose outcome is not known.
func (b *backend) revoke(l ttl, longest time.Duration) {
	if l.id == 0 { // there is none
		return
	}
	b.cleanup.add(time.Now().Add(longest), func(ctx context.Context) error {
		_, err := b.leases.LeaseRevoke(undated{ctx}, &pb.LeaseRevokeRequest{ID: int64(l.id)})
		if errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
			return nil
		}
		return err
	})
}

// holding is the Private of a Grant: the lease of the lock's entry, which an extension by another TTL replaces.
type holding struct {
	revision  int64         // at which the entry was created; 0: not known
	extending chan struct{} // has a value while an Extend is in progress

	mu sync.Mutex
	ttl
	doubts []ttl // leases to which the entry may be moved at any time, by requests that were not answered
}

// beginExtend waits until no other Extend of the lock is in progress. A renewal must not succeed for a lease that the
// entry leaves at the same time.
func (h *holding) beginExtend(ctx context.Context) error {
	select {
	case h.extending <- struct{}{}:
		return nil
	case <-ctx.Done():
		return unavailable(ctx, ctx.Err())
	}
}

func (h *holding) endExtend() { <-h.extending }

func (h *holding) get() (l ttl, doubts []ttl) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ttl, h.doubts
}

func (h *holding) set(l ttl, doubts []ttl) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ttl, h.doubts = l, doubts
}

// holdingOf returns what Extend and Release know of a lock.
func holdingOf(req locker.Request) *holding {
	if h, ok := req.Private.(*holding); ok {
		return h
	}
	return newHolding(0, ttl{}) // the lease is unknown: the entry tells it
}

func newHolding(revision int64, l ttl) *holding {
	return &holding{revision: revision, extending: make(chan struct{}, 1), ttl: l}
}

// move writes the entry of a lock again, with a new lease for d from now instead of the old one. Then the old one is
// revoked. The entry keeps the revision of its creation, which is the token and the place in the queue. If the entry
// had changed, moved is false. If the outcome is not known, only the entry says which lease it has. move then returns
// the new lease if there is one. If next is a lease, it is renewed and used.
func (b *backend) move(
	ctx context.Context, req locker.Request, revision int64, old clientv3.LeaseID, d time.Duration, next ttl,
) (l ttl, moved bool, err error) {
	l = next
	var answer <-chan renewed
	if l.id != 0 {
		l.sent, answer = time.Now(), b.renewals.send(l.id)
	} else if l, err = b.lease(ctx, d); err != nil {
		return l, false, err
	}
	entry := b.entry(req.Key, req.Token)
	same := append(owns(entry, revision), clientv3.Compare(clientv3.LeaseValue(entry), "=", old))
	put := clientv3.OpPut(entry, req.Label, clientv3.WithLease(l.id))
	resp, err := b.kv.Txn(ctx).If(same...).Then(put).Commit()
	switch {
	case err != nil:
		return l, false, unavailable(ctx, err)
	case !resp.Succeeded:
		b.revoke(l, d)
		return l, false, nil
	}
	if answer != nil {
		left, err := b.renewals.await(ctx, answer)
		if err == nil && left <= 0 {
			err = errors.New("the lease has ended meanwhile")
		}
		if err != nil {
			return l, false, unavailable(ctx, err)
		}
	}
	b.revoke(ttl{id: old}, d)
	return l, true, nil
}
