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
// been deleted while its lease goes on. With another TTL it moves the entry to another lease. It also moves the entry
// if an earlier move was not answered. The earlier move may be executed late, and could shorten what is promised
// meanwhile. It then has no effect, because the entry has been moved again.
func (b *Backend) Extend(ctx context.Context, req locker.Request) error {
	ctx, cancel, err := b.bounded(ctx, b.timeout)
	if err != nil {
		return err
	}
	defer cancel()
	h := holdingOf(req)
	if err := h.enter(ctx); err != nil {
		return err
	}
	defer h.leave()
	l, doubts := h.get()
	renews := l.asks == seconds(req.TTL) && len(doubts) == 0
	sent, answer := time.Now(), make(<-chan renewed)
	if renews {
		answer = b.renewals.send(l.id)
	}
	entry, err := b.own(ctx, req)
	if err != nil {
		return err
	}
	id := clientv3.LeaseID(entry.Lease)
	left := l.left()
	switch {
	case renews && id == l.id:
		return b.renewed(ctx, h, sent, answer)
	case len(doubts) == 0 && id == l.id && left > req.TTL: // the new TTL is shorter, and there is more left of the old one
		return nil
	}
	other, moved, err := b.move(ctx, req, req.Fence, id, max(req.TTL, left), ttl{})
	switch {
	case err == nil && moved:
		h.set(other, nil)
		for _, l := range doubts {
			b.revoke(l, req.TTL)
		}
	case err == nil:
		err = unavailable(ctx, errors.New("the lock's entry has changed meanwhile"))
	case other.id != 0:
		h.set(l, append(doubts, other))
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
	l, _ := h.get()
	sent := time.Now()
	return b.renewed(ctx, h, sent, b.renewals.send(l.id))
}

// renewed waits for the answer to a renewal that was sent at the given time.
func (b *Backend) renewed(ctx context.Context, h *holding, sent time.Time, answer <-chan renewed) error {
	left, err := b.renewals.await(ctx, answer)
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
	until, kept := time.Now().Add(req.Keep), new(ttl)
	err = b.release(inner, req, until, kept)
	if errors.Is(err, locker.ErrUnavailable) {
		b.cleanup.add(time.Now().Add(req.TTL), func(ctx context.Context) error {
			err := b.release(undated{ctx}, req, until, kept)
			if errors.Is(err, locker.ErrNotHeld) {
				return nil
			}
			return err
		})
	}
	return err
}

// release deletes the entry of a lock, or writes it again as one that has no owner and ends at until. The lease is no
// longer needed then. kept is the new lease, which a release that is tried again uses again: the entry may have it.
func (b *Backend) release(ctx context.Context, req locker.Request, until time.Time, kept *ttl) error {
	entry := b.entry(req.Key, req.Token)
	end := clientv3.OpDelete(entry)
	if keep := time.Until(until); keep > 0 {
		if kept.id == 0 {
			l, err := b.lease(ctx, keep)
			if err != nil {
				return err
			}
			*kept = l
		}
		end = clientv3.OpPut(entry, keptValue, clientv3.WithLease(kept.id))
	}
	resp, err := b.kv.Txn(ctx).If(owns(entry, req.Fence)...).Then(end).Else(first(b.dir(req.Key))).Commit()
	if err != nil {
		return unavailable(ctx, err)
	}
	l, doubts := holdingOf(req).get()
	for _, l := range append([]ttl{l}, doubts...) {
		b.revoke(l, req.TTL)
	}
	if resp.Succeeded {
		return nil
	}
	first := resp.Responses[0].GetResponseRange().Kvs
	if len(first) == 0 || clientv3.LeaseID(first[0].Lease) != kept.id { // no earlier try was executed
		b.revoke(*kept, req.Keep)
	}
	return notHeld(first)
}
