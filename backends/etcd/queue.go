package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// The bounds of the TTL of a waiter's entry. The entry of a waiter that has died delays the waiters behind it by that
// time, if they come to the front meanwhile. A waiter renews its entry every third of it, and not more often than once
// a second.
const (
	minWaiting = 3 * time.Second
	maxWaiting = 10 * time.Second
)

// waiter is a call of Queue. It has an entry in the directory of the lock, behind that of the owner, and watches the
// entry just before its own. Without a goroutine of its own, it renews its entry between two watches.
type waiter struct {
	*backend
	req      locker.Request
	lease    ttl              // of the entry
	next     ttl              // with the TTL of the lock, for the time at the front; there may be none
	tried    []ttl            // to which the entry may have been moved, by promotions that were not answered
	revision int64            // when the entry was created; 0: there is none
	record   *mvccpb.KeyValue // of the tokens, in the transaction that found the entry to be the first
	result   locker.Grant     // once the entry is the first

	watch watch
}

// errGone means that the entry of a waiter has ended, because etcd did not answer for longer than its TTL, or because
// somebody has deleted it.
var errGone = errors.New("the entry of the waiter has ended")

// Queue implements [locker.Queuer]. Waiters are served in the order of their entries.
func (b *backend) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	w := &waiter{backend: b, req: req}
	defer w.watch.stop()
	first := req.Token
	for {
		g, err := w.wait(ctx)
		if err == nil {
			if w.req.Token != first {
				g.Token = w.req.Token
			}
			return g, nil
		}
		if !errors.Is(err, errGone) {
			w.leave()
			return locker.Grant{}, err
		}
		w.anew()
	}
}

// anew gives up the entry, so that the next contact makes another one, at the end of the queue.
func (w *waiter) anew() {
	w.leave()
	w.req.Token, w.revision = locker.NewToken(), 0
}

// wait takes a place in the queue, and returns when the entry is the first one.
func (w *waiter) wait(ctx context.Context) (locker.Grant, error) {
	for {
		before, pause, err := w.step(ctx)
		switch {
		case err != nil:
			return locker.Grant{}, err
		case before == nil && pause == 0:
			return w.result, nil
		}
		if err := w.sleep(ctx, before, pause); err != nil {
			return locker.Grant{}, err
		}
	}
}

// step makes one contact with etcd. It returns the entry that the waiter has to wait for, or nil if it has the lock. An
// error ends the wait. If etcd fails and the waiter tolerates that, step returns how long to pause.
func (w *waiter) step(ctx context.Context) (before *mvccpb.KeyValue, pause time.Duration, err error) {
	start := time.Now()
	limit := min(w.timeout, w.req.TTL)
	left := w.req.Wait.Left()
	if since, _ := w.req.Wait.Failing(); w.req.Wait.Waits() && (left > 0 || !since.IsZero()) {
		limit = min(w.timeout, max(time.Millisecond, left))
	}
	inner, cancel, err := w.bounded(ctx, limit)
	if err != nil {
		return nil, 0, err
	}
	defer cancel()
	if w.revision == 0 {
		before, err = w.join(inner)
	} else {
		before, err = w.look(inner)
	}
	if err == nil && before == nil && w.lease.asks != seconds(w.req.TTL) {
		err = w.promote(inner)
	}
	if err == nil && before == nil {
		w.result, err = w.granted(inner, w.req, w.revision, w.lease, w.record)
	}
	if !errors.Is(err, locker.ErrUnavailable) {
		w.req.Wait.Answered()
		return before, 0, err
	}
	if err := w.req.Wait.Failed(ctx, start, err); err != nil {
		return nil, 0, err
	}
	if w.revision == 0 { // the entry may be there, or come late
		w.anew()
	}
	return nil, w.req.Wait.Pause(), nil
}

// saw records who has the lock. It fails if that is not a lock.
func (w *waiter) saw(owner *mvccpb.KeyValue) error {
	held := heldBy(owner)
	var known *locker.HeldError
	if !errors.As(held, &known) {
		return held
	}
	w.req.Wait.Held(known)
	return nil
}

// sleep waits until the entry before is deleted, or until it is time for the next contact. pause is how long to wait if
// etcd fails.
func (w *waiter) sleep(ctx context.Context, before *mvccpb.KeyValue, pause time.Duration) error {
	start, reason := time.Now(), lockertrace.WakePoll
	var gone clientv3.WatchChan
	if before != nil {
		pause = max(time.Second, time.Duration(w.lease.asks)*time.Second/3)
		gone = w.watch.begin(ctx, w.backend, string(before.Key))
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	for {
		select {
		case resp, ok := <-gone:
			if ok && len(resp.Events) == 0 && resp.Err() == nil {
				continue // the watch has begun
			}
			w.watch.stop()
			if !ok || resp.Err() != nil {
				gone = nil // etcd may fail: the next contact shows it, and is not sooner than without a watch
				continue
			}
			reason = lockertrace.WakeHandover
		case <-t.C:
		case <-w.req.Wait.Closing():
			return locker.ErrClosed
		case <-w.open.Done():
			return locker.ErrClosed
		case <-ctx.Done():
			return w.req.Wait.Ended(ctx)
		}
		w.req.Wait.Woken(reason, start)
		return nil
	}
}

// leave removes the waiter from the queue, or the lock that it was granted meanwhile.
func (w *waiter) leave() {
	w.watch.stop()
	w.revokeLease()
	w.revoke(w.next, w.req.TTL)
	w.next = ttl{}
	w.revokeTried()
	if w.revision == 0 || w.fits() {
		return
	}
	// A promotion may have given the entry another lease. It does nothing after this, because the entry is gone.
	entry := w.entry(w.req.Key, w.req.Token)
	w.cleanup.add(time.Now().Add(w.req.TTL), func(ctx context.Context) error {
		_, err := w.kv.Delete(undated{ctx}, entry)
		return err
	})
}

func (w *waiter) revokeTried() {
	for _, l := range w.tried {
		w.revoke(l, w.req.TTL)
	}
	w.tried = nil
}

func (w *waiter) revokeLease() {
	if w.lease.id != 0 {
		w.revoke(w.lease, max(w.req.TTL, maxWaiting))
		w.lease = ttl{}
	}
}

// A waiter's place in the queue is its entry.

// join makes the first contact: it takes the lock if it is free, and writes the waiter's entry otherwise.
func (w *waiter) join(ctx context.Context) (before *mvccpb.KeyValue, err error) {
	if w.lease, err = w.backend.lease(ctx, w.req.TTL); err != nil {
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
	resp, err := w.kv.Txn(ctx).If(free(dir)).Then(put(), w.drawTokens()).Else(otherwise...).Commit()
	switch {
	case err == nil && resp.Succeeded:
		w.record = drawn(resp.Responses[1])
	case err == nil && !w.fits():
		if w.req.TTL > maxWaiting {
			w.next = w.lease
		} else {
			w.revokeLease()
		}
		if w.lease, err = w.backend.lease(ctx, min(max(w.req.TTL, minWaiting), maxWaiting)); err != nil {
			return nil, err
		}
		resp, err = w.kv.Txn(ctx).Then(first(dir), put(), w.readTokens()).Commit()
		if err == nil {
			resp.Succeeded = len(resp.Responses[0].GetResponseRange().Kvs) == 0
			w.record = recordOf(resp.Responses[2])
		}
	}
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	w.revision = resp.Header.Revision
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
	last := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(w.revision-1))
	resp, err := w.kv.Txn(ctx).Then(
		clientv3.OpGet(dir+w.req.Token), clientv3.OpGet(dir, last...), first(dir), w.readTokens(),
	).Commit()
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	kvs := func(i int) []*mvccpb.KeyValue { return resp.Responses[i].GetResponseRange().Kvs }
	w.record = recordOf(resp.Responses[3])
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
		l, moved, err := w.move(ctx, w.req, w.revision, w.lease.id, w.req.TTL, next)
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
