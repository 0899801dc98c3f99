package etcd

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A waiter's place in the queue is its entry.

// join makes the first contact: it takes the lock if it is free, and writes the waiter's entry otherwise.
func (w *waiter) join(ctx context.Context) (before *mvccpb.KeyValue, err error) {
	if w.lease, err = w.Backend.lease(ctx, w.req.TTL); err != nil {
		return nil, err
	}
	dir := w.dir(w.req.Key)
	put := func() clientv3.Op {
		return clientv3.OpPut(dir+w.req.Token, w.req.Label, clientv3.WithLease(w.lease.id))
	}
	otherwise := []clientv3.Op{first(dir)}
	if w.fits() {
		otherwise = append(otherwise, put())
	}
	resp, err := w.kv.Txn(ctx).If(free(dir)).Then(put()).Else(otherwise...).Commit()
	if err == nil && !resp.Succeeded && !w.fits() {
		if w.req.TTL > maxWaiting {
			w.next = w.lease
		} else {
			w.revokeLease()
		}
		if w.lease, err = w.Backend.lease(ctx, min(max(w.req.TTL, minWaiting), maxWaiting)); err != nil {
			return nil, err
		}
		resp, err = w.kv.Txn(ctx).Then(first(dir), put()).Commit()
		if err == nil {
			resp.Succeeded = len(resp.Responses[0].GetResponseRange().Kvs) == 0
		}
	}
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	w.fence = uint64(resp.Header.Revision)
	if resp.Succeeded {
		return nil, nil
	}
	owner := resp.Responses[0].GetResponseRange().Kvs[0]
	if err := w.saw(owner); err != nil {
		return nil, err
	}
	return w.look(ctx)
}

// fits reports whether an entry with the TTL of the lock can wait.
func (w *waiter) fits() bool { return w.req.TTL >= minWaiting && w.req.TTL <= maxWaiting }

// look renews the entry, and the lease that it will have at the front, and reads which entry is before it.
func (w *waiter) look(ctx context.Context) (before *mvccpb.KeyValue, err error) {
	dir := w.dir(w.req.Key)
	sent := time.Now()
	answer := w.renewals.send(w.lease.id)
	if err := w.renewNext(ctx); err != nil {
		return nil, err
	}
	last := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(int64(w.fence)-1))
	resp, err := w.kv.Txn(ctx).Then(clientv3.OpGet(dir+w.req.Token), clientv3.OpGet(dir, last...), first(dir)).Commit()
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	kvs := func(i int) []*mvccpb.KeyValue { return resp.Responses[i].GetResponseRange().Kvs }
	own := kvs(0)
	if len(own) == 0 {
		return nil, errGone
	}
	if id := clientv3.LeaseID(own[0].Lease); id != w.lease.id { // a promotion that was not answered
		w.lease = ttl{id: id}
		return nil, nil
	}
	left, err := w.renewals.await(ctx, answer)
	switch {
	case err != nil:
		return nil, unavailable(ctx, err)
	case left <= 0:
		return nil, errGone
	}
	w.lease.sent = sent
	if len(kvs(1)) == 0 {
		return nil, nil
	}
	w.watch.from = resp.Header.Revision + 1
	return kvs(1)[0], w.saw(kvs(2)[0])
}

// renewNext renews the lease that the entry will have at the front, if it is time for that.
func (w *waiter) renewNext(ctx context.Context) error {
	sent := time.Now()
	if w.next.id == 0 || sent.Sub(w.next.sent) < time.Duration(w.next.asks)*time.Second/3 {
		return nil
	}
	left, err := w.renewals.await(ctx, w.renewals.send(w.next.id))
	switch {
	case err != nil:
		return unavailable(ctx, err)
	case left <= 0:
		w.next = ttl{}
	default:
		w.next.sent = sent
	}
	return nil
}

// promote gives the entry, which is the first one, the TTL of the lock. A hand-over costs one transaction if there is a
// lease for that already.
func (w *waiter) promote(ctx context.Context) error {
	for {
		next := w.next
		w.next = ttl{}
		l, moved, err := w.move(ctx, w.req, w.fence, w.lease.id, w.req.TTL, next)
		if err != nil {
			if l.id != 0 {
				w.tried = append(w.tried, l)
			}
			return err
		}
		if moved { // so an earlier promotion that comes late has no effect
			w.revokeTried()
			w.lease = l
			return nil
		}
		// The entry is gone, or an earlier promotion that was not answered has come late.
		if _, err := w.look(ctx); err != nil {
			return err
		}
	}
}
