package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

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

// lease makes a lease for d from now. If the outcome is not known, there may be one without an entry, until it ends.
func (b *Backend) lease(ctx context.Context, d time.Duration) (ttl, error) {
	l := ttl{asks: seconds(d), sent: time.Now()}
	resp, err := b.leases.Grant(ctx, l.asks)
	if err != nil {
		return l, unavailable(ctx, err)
	}
	l.id = resp.ID
	return l, nil
}

// revoke ends a lease in the background, and the entry that it has at that time. A request that arrives later to write
// an entry with the lease is refused. So this undoes an attempt whose outcome is not known.
func (b *Backend) revoke(l ttl, longest time.Duration) {
	b.cleanup.add(time.Now().Add(longest), func(ctx context.Context) error {
		_, err := b.leases.Revoke(undated{ctx}, l.id)
		if errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
			return nil
		}
		return err
	})
}

// holding is the Private of a Grant: the lease of the lock's entry, which an extension by another TTL replaces.
type holding struct {
	mu sync.Mutex
	ttl
}

func (h *holding) get() ttl {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ttl
}

func (h *holding) set(l ttl) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ttl = l
}

// holdingOf returns what Extend and Release know of a lock.
func holdingOf(req locker.Request) *holding {
	if h, ok := req.Private.(*holding); ok {
		return h
	}
	return &holding{} // the lease is unknown: the entry tells it
}

func granted(fence int64, l ttl) locker.Grant {
	return locker.Grant{Fence: uint64(fence), Private: &holding{ttl: l}, Sent: l.sent}
}

// move writes the entry of a lock again, with a new lease for d from now instead of the old one. Then the old one is
// revoked. The entry keeps the revision of its creation, which is the token and the place in the queue. moved is false
// if the entry had changed. If the outcome is not known, the entry tells its lease.
func (b *Backend) move(ctx context.Context, req locker.Request, fence uint64, old ttl, d time.Duration) (
	l ttl, moved bool, err error,
) {
	if l, err = b.lease(ctx, d); err != nil {
		return l, false, err
	}
	entry := b.entry(req.Key, req.Token)
	same := append(owns(entry, fence), clientv3.Compare(clientv3.LeaseValue(entry), "=", old.id))
	put := clientv3.OpPut(entry, req.Label, clientv3.WithLease(l.id))
	resp, err := b.kv.Txn(ctx).If(same...).Then(put).Commit()
	switch {
	case err != nil:
		return l, false, unavailable(ctx, err)
	case !resp.Succeeded:
		b.revoke(l, d)
		return l, false, nil
	}
	b.revoke(old, time.Until(old.end()))
	return l, true, nil
}
