package etcdlock

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/lockertrace"
)

// The bounds of the TTL of a waiter's entry. The entry of a waiter that has died delays the waiters behind it by that
// time, if they come to the front meanwhile. A waiter renews its entry every third of it, and not more often than once
// a second.
const (
	minWaiting = 3 * time.Second
	maxWaiting = 10 * time.Second
)

// asNew is the part of its TTL up to which the lease of an entry that comes to the front counts as new.
const asNew = 10

// waiter is a call of Queue. It has an entry in the directory of the lock, behind that of the owner, and watches the
// entry just before its own. Without a goroutine of its own, it renews its entry between two watches.
type waiter struct {
	*store
	req      backend.Request
	wait     backend.Wait
	lease    *lease           // of the entry
	holding  *holding         // of the entry at the front, from the first promotion on
	revision int64            // when the entry was created; 0: there is none
	record   *mvccpb.KeyValue // of the tokens, in the transaction that found the entry to be the first
	result   backend.Grant    // once the entry is the first

	watch watch
	group *seeker // of a waiter for an entry of a group; nil: it waits for a lock
}

// errGone means that the entry of a waiter has ended, because etcd did not answer for longer than its TTL, or because
// somebody has deleted it.
var errGone = errors.New("the entry of the waiter has ended")

// Queue implements [backend.Queuer]. Waiters are served in the order of their entries.
func (b *store) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	w := &waiter{store: b, req: req, wait: wait}
	if req.Group != nil {
		w.group = newSeeker(w)
		defer w.group.stop()
	}
	granted := false
	defer func() {
		if w.watch.stop(); !granted { // or a hook has panicked
			w.leave()
		}
	}()
	first := req.Token
	for {
		g, err := w.run(ctx)
		if granted = err == nil; granted {
			if w.req.Token != first {
				g.Token = w.req.Token
			}
			return g, nil
		}
		if !errors.Is(err, errGone) {
			return backend.Grant{}, err
		}
		w.anew()
	}
}

// anew gives up the entry, so that the next contact makes another one, at the end of the queue.
func (w *waiter) anew() {
	w.leave()
	w.req.Token, w.revision, w.holding = backend.NewToken(), 0, nil
	if w.group != nil {
		w.group.anew()
	}
}

// run takes a place in the queue, and returns when the entry is the first one.
func (w *waiter) run(ctx context.Context) (backend.Grant, error) {
	for {
		before, pause, err := w.step(ctx)
		switch {
		case err != nil:
			return backend.Grant{}, err
		case before == nil && pause == 0:
			return w.result, nil
		}
		sleep := w.sleep
		if w.group != nil {
			sleep = w.group.sleep
		}
		if err := sleep(ctx, before, pause); err != nil {
			return backend.Grant{}, err
		}
	}
}

// step makes one contact with etcd. It returns the entry that the waiter has to wait for, or nil if it has the lock. An
// error ends the wait. If etcd fails and the waiter tolerates that, step returns how long to pause.
func (w *waiter) step(ctx context.Context) (before *mvccpb.KeyValue, pause time.Duration, err error) {
	start := time.Now()
	inner, cancel, err := w.bounded(ctx, w.wait.Limit(min(w.timeout, w.req.TTL)))
	if err != nil {
		return nil, 0, err
	}
	defer cancel()
	switch {
	case w.group != nil:
		before, err = w.group.contact(inner)
	case w.revision == 0:
		before, err = w.join(inner)
	default:
		before, err = w.look(inner)
	}
	if err == nil && before == nil {
		err = w.promote(inner)
	}
	if err == nil && before == nil {
		w.req.Fences = w.wait.Fences()
		w.result, err = w.granted(inner, w.req, w.holding, w.lease.sent, w.record)
	}
	if !errors.Is(err, locker.ErrUnavailable) {
		w.wait.Answered()
		return before, 0, err
	}
	if pause, err = w.wait.Failed(ctx, start, err); err != nil {
		return nil, 0, err
	}
	if w.revision == 0 && (w.group == nil || w.group.joined == 0) { // the entry may be there, or come late
		w.anew()
	}
	return nil, pause, nil
}

// saw records who has the lock. It fails if that is not a lock.
func (w *waiter) saw(owner *mvccpb.KeyValue) error {
	held := heldBy(owner)
	var known *locker.HeldError
	if !errors.As(held, &known) {
		return held
	}
	w.wait.Held(known)
	return nil
}

// sleep waits until the entry before is deleted, or until it is time for the next contact. pause is how long to wait if
// etcd fails.
func (w *waiter) sleep(ctx context.Context, before *mvccpb.KeyValue, pause time.Duration) error {
	start, reason := time.Now(), lockertrace.WakePoll
	var gone clientv3.WatchChan
	if before != nil {
		pause = max(time.Second, w.lease.third()-time.Since(w.lease.sent))
		gone = w.watch.begin(ctx, w.store, string(before.Key))
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
		case <-w.wait.Closing():
			return locker.ErrClosed
		case <-w.open.Done():
			return locker.ErrClosed
		case <-ctx.Done():
			return w.wait.Ended(ctx)
		}
		w.wait.Woken(reason, start)
		return nil
	}
}

// leave removes the waiter from the queue, or the lock that it was granted meanwhile.
func (w *waiter) leave() {
	w.watch.stop()
	leases := []*lease{w.lease}
	if w.holding != nil { // a promotion that was not answered may have given the entry another lease
		leases = w.holding.ended()
	}
	for _, l := range leases {
		if l != nil {
			w.revoke(l)
		}
	}
	w.lease = nil
}

// A waiter's place in the queue is its entry.

// join makes the first contact: it takes the lock if it is free, and writes the waiter's entry otherwise.
func (w *waiter) join(ctx context.Context) (before *mvccpb.KeyValue, err error) {
	if err := w.chores.Backlog(); err != nil {
		return nil, unavailable(ctx, err)
	}
	if w.lease, err = w.store.lease(ctx, w.req.TTL, 1); err != nil {
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
		w.revoke(w.lease)
		if w.lease, err = w.store.lease(ctx, min(max(w.req.TTL, minWaiting), maxWaiting), 1); err != nil {
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

// look reads which entry is before that of the waiter, and renews the lease of the latter if it is time for that. A
// renewal may be lost again: see move. That costs the waiter its place, if it comes to that.
func (w *waiter) look(ctx context.Context) (before *mvccpb.KeyValue, err error) {
	dir, renewal := w.dir(w.req.Key), w.renewal()
	last := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(w.revision-1))
	resp, err := w.kv.Txn(ctx).Then(
		clientv3.OpGet(dir+w.req.Token), clientv3.OpGet(dir, last...), first(dir), w.readTokens(),
	).Commit()
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	kvs := func(i int) []*mvccpb.KeyValue { return resp.Responses[i].GetResponseRange().Kvs }
	w.record = recordOf(resp.Responses[3])
	switch {
	case len(kvs(0)) == 0:
		return nil, errGone
	case len(kvs(1)) == 0:
		return nil, nil
	}
	if err := renewal(ctx); err != nil {
		return nil, err
	}
	w.watch.from = resp.Header.Revision + 1
	return kvs(1)[0], w.saw(kvs(2)[0])
}

// renewal renews the lease of the entry, if it is time for that. What it returns waits for the answer.
func (w *waiter) renewal() (answered func(ctx context.Context) error) {
	l, sent := w.lease, time.Now()
	if sent.Sub(l.sent) < l.third() {
		return func(context.Context) error { return nil }
	}
	l.renewed = true
	answer := w.renewals.send(l.id)
	return func(ctx context.Context) error {
		left, err := w.renewals.await(ctx, answer)
		switch {
		case err != nil:
			return unavailable(ctx, err)
		case left <= 0:
			return errGone
		}
		l.sent = sent
		return nil
	}
}

// promote makes the waiter, whose entry is the first one, the holder. Its entry moves to a new lease, with the TTL of
// the lock, unless the lease that it has is as good as new: nobody has the lock until that is confirmed. It is never
// moved back, and there is no entry before it any more, so promote can be tried again.
func (w *waiter) promote(ctx context.Context) error {
	if w.holding == nil {
		w.holding = newHolding(w.revision, w.lease)
		if w.group != nil {
			w.holding.place = &w.group.gets
		}
		if !w.lease.renewed && w.lease.asks == seconds(w.req.TTL) && time.Since(w.lease.sent) < w.req.TTL/asNew {
			return nil
		}
	}
	l, err := w.store.lease(ctx, w.req.TTL, 1)
	if err != nil {
		return err
	}
	w.holding.mayHave(l)
	m := w.newMove(w.req, w.holding)
	w.attach(ctx, l, []*move{m})
	err = <-m.outcome
	if errors.Is(err, locker.ErrNotHeld) {
		return errGone
	}
	if err == nil {
		w.lease = l
	}
	return err
}
