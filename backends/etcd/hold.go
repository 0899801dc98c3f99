package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
)

// Extend implements [locker.Backend]. It renews the lease, and reads the entry at the same time: the entry may have
// been deleted while its lease goes on.
func (b *Backend) Extend(ctx context.Context, req locker.Request) error {
	ctx, cancel, err := b.bounded(ctx, b.timeout)
	if err != nil {
		return err
	}
	defer cancel()
	h := holdingOf(req)
	l := h.get()
	sent, answer := time.Now(), make(<-chan renewed)
	if l.asks == seconds(req.TTL) {
		answer = b.renewals.send(l.id)
	}
	entry, err := b.own(ctx, req)
	if err != nil {
		return err
	}
	switch {
	case entry.Lease != int64(l.id): // an earlier extension has replaced the lease, and was not answered
		l = ttl{id: clientv3.LeaseID(entry.Lease)}
	case l.asks == seconds(req.TTL):
		return b.renewed(ctx, h, sent, answer)
	case time.Until(l.end()) > req.TTL: // the new TTL is shorter, and there is more left of the old one
		return nil
	}
	l, moved, err := b.move(ctx, req, req.Fence, l, req.TTL)
	if err == nil && !moved {
		err = unavailable(ctx, errors.New("another extension of the lock is in progress"))
	}
	if err == nil {
		h.set(l)
	}
	return err
}

// own reads the entry of req. The error matches locker.ErrNotHeld if it is gone, or released.
func (b *Backend) own(ctx context.Context, req locker.Request) (*mvccpb.KeyValue, error) {
	entry := b.entry(req.Key, req.Token)
	resp, err := b.kv.Txn(ctx).If(owns(entry, req.Fence)...).Then(clientv3.OpGet(entry)).
		Else(first(b.dir(req.Key))).Commit()
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if !resp.Succeeded {
		return nil, notHeld(kvs)
	}
	return kvs[0], nil
}

// renew renews the lease of a lock.
func (b *Backend) renew(ctx context.Context, h *holding) error {
	sent := time.Now()
	return b.renewed(ctx, h, sent, b.renewals.send(h.get().id))
}

// renewed waits for the answer to a renewal that was sent at the given time.
func (b *Backend) renewed(ctx context.Context, h *holding, sent time.Time, answer <-chan renewed) error {
	left, err := b.renewals.await(ctx, sent, answer)
	if err != nil {
		return unavailable(ctx, err)
	}
	if left <= 0 {
		return locker.ErrNotHeld // the entry has ended with its lease
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent = sent
	return nil
}

// Release implements [locker.Backend].
func (b *Backend) Release(ctx context.Context, req locker.Request) error {
	inner, cancel, err := b.bounded(ctx, b.timeout)
	if err != nil {
		return err
	}
	defer cancel()
	until := time.Now().Add(req.Keep)
	err = b.release(inner, req, until)
	if errors.Is(err, locker.ErrUnavailable) {
		b.cleanup.add(time.Now().Add(req.TTL), func(ctx context.Context) error {
			err := b.release(undated{ctx}, req, until)
			if errors.Is(err, locker.ErrNotHeld) {
				return nil
			}
			return err
		})
	}
	return err
}

// release deletes the entry of a lock, or writes it again as one that has no owner and ends at until. The lease is no
// longer needed then.
func (b *Backend) release(ctx context.Context, req locker.Request, until time.Time) error {
	entry := b.entry(req.Key, req.Token)
	end := clientv3.OpDelete(entry)
	if keep := time.Until(until); keep > 0 {
		kept, err := b.lease(ctx, keep)
		if err != nil {
			return err
		}
		end = clientv3.OpPut(entry, keptValue, clientv3.WithLease(kept.id))
	}
	resp, err := b.kv.Txn(ctx).If(owns(entry, req.Fence)...).Then(end).Else(first(b.dir(req.Key))).Commit()
	if err != nil {
		return unavailable(ctx, err)
	}
	if !resp.Succeeded {
		return notHeld(resp.Responses[0].GetResponseRange().Kvs)
	}
	if l := holdingOf(req).get(); l.id != 0 {
		b.revoke(l, req.TTL)
	}
	return nil
}
