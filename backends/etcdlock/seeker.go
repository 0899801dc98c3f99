package etcdlock

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// seeker is a waiter for an entry of a group. It waits for the waiter just before it, as a waiter for a lock does. The
// first one reads the whole group when a holder leaves, and serves itself and those behind it that have room. The
// others are told by the deletion of their entry, whose successor has the lease that they renew until they have moved
// it.
type seeker struct {
	*waiter
	joined  int64 // the revision of the entry that waits; 0: there is none
	gets    place // what it was granted, once the revision of the waiter is set
	first   bool  // nobody is before it
	held    error // who has what it wants, or is before it
	news    chan bool
	watched []*watched
}

func newSeeker(w *waiter) *seeker {
	w.wait.EndWith(w.open.Done())
	return &seeker{waiter: w, news: make(chan bool, 1)}
}

// anew forgets the entry.
func (s *seeker) anew() { s.joined, s.first = 0, false }

// contact makes one contact with etcd; see waiter.step.
func (s *seeker) contact(ctx context.Context) (before *mvccpb.KeyValue, err error) {
	if s.joined == 0 && s.revision == 0 {
		return s.join(ctx)
	}
	renewal := s.renewal()
	before, err = s.look(ctx)
	if err == nil && before != nil {
		err = renewal(ctx)
	}
	return before, err
}

// join takes what the waiter wants if it is free, and writes its entry otherwise.
func (s *seeker) join(ctx context.Context) (before *mvccpb.KeyValue, err error) {
	if err := s.chores.Backlog(); err != nil {
		return nil, unavailable(ctx, err)
	}
	if s.lease, err = s.store.lease(ctx, s.req.TTL, 1); err != nil {
		return nil, err
	}
	t, err := s.enter(ctx, &s.req, s.lease)
	if err == nil {
		s.found(t)
		return nil, nil
	}
	if !errors.Is(err, locker.ErrHeld) && !errors.Is(err, errLost) {
		return nil, err
	}
	room := errors.Is(err, errLost) // behind those that wait, who may have died
	if s.held = err; room {
		s.held = &locker.HeldError{}
	}
	if !s.fits() {
		s.revoke(s.lease)
		if s.lease, err = s.store.lease(ctx, min(max(s.req.TTL, minWaiting), maxWaiting), 1); err != nil {
			return nil, err
		}
	}
	dir, p := s.dir(s.req.Key), wanted(&s.req)
	put := clientv3.OpPut(waiterName(dir, s.req.Token), p.text(), clientv3.WithLease(s.lease.id))
	resp, err := s.kv.Txn(ctx).Then(clientv3.OpGet(dir+waits, clientv3.WithLastCreate()...), put).Commit()
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	s.joined, s.first = resp.Header.Revision, room || s.req.Group.From != ""
	return s.behind(ctx, resp.Responses[0].GetResponseRange().Kvs, resp.Header.Revision)
}

// found records what the waiter was granted.
func (s *seeker) found(t *taken) { s.revision, s.gets, s.record = t.revision, t.place, t.record }

// look finds out whether the waiter was served, and who is before it otherwise.
func (s *seeker) look(ctx context.Context) (before *mvccpb.KeyValue, err error) {
	if s.first {
		return s.lookAtAll(ctx)
	}
	dir := s.dir(s.req.Key)
	last := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(s.joined-1))
	resp, err := s.kv.Txn(ctx).Then(clientv3.OpGet(waiterName(dir, s.req.Token)), clientv3.OpGet(dir+s.req.Token),
		clientv3.OpGet(dir+waits, last...), s.readTokens()).Commit()
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	kvs := func(i int) []*mvccpb.KeyValue { return resp.Responses[i].GetResponseRange().Kvs }
	switch {
	case len(kvs(1)) > 0:
		m, err := seatOf(dir, kvs(1)[0])
		if err == nil {
			s.found(&taken{m.place, m.created, recordOf(resp.Responses[3]), nil})
		}
		return nil, err
	case len(kvs(0)) == 0:
		return nil, errGone
	}
	return s.behind(ctx, kvs(2), resp.Header.Revision)
}

// behind waits for the waiter that came last before this one, as it was read, or looks at the whole group if there is
// none, or if it is one that this one passes: others may be before that.
func (s *seeker) behind(ctx context.Context, last []*mvccpb.KeyValue, revision int64) (*mvccpb.KeyValue, error) {
	if s.first = s.first || len(last) == 0; s.first {
		return s.lookAtAll(ctx)
	}
	ahead, err := seatOf(s.dir(s.req.Key), last[0])
	switch {
	case err != nil:
		return nil, err
	case passes(s.req.Group, &ahead):
		return s.lookAtAll(ctx)
	}
	return s.waitsFor(ahead.name, "", revision), nil
}

// lookAtAll reads the whole group, and serves those who can be served.
func (s *seeker) lookAtAll(ctx context.Context) (before *mvccpb.KeyValue, err error) {
	t, g, err := s.handOn(ctx, s.req.Key, s.req.Group.Kind == backend.Permit, s.req.Token)
	if err != nil {
		return nil, err
	}
	if t != nil {
		s.found(t)
		return nil, nil
	}
	i := g.place(s.req.Token)
	switch {
	case i < 0:
		return nil, errGone
	case s.req.Group.From != "" && !g.has(s.req.Group):
		return nil, locker.ErrNotHeld
	}
	if ahead := g.ahead(i); ahead != nil {
		s.first = false
		return s.waitsFor(ahead.name, "", g.revision), nil
	}
	s.held = g.heldFor(s.req.Group)
	dir := s.dir(s.req.Key)
	return s.waitsFor(holders(dir), clientv3.GetPrefixRangeEnd(dir), g.revision), nil
}

// waitsFor watches the entry of the waiter, and what it waits for: an entry, or a range of them.
func (s *seeker) waitsFor(name, end string, revision int64) (before *mvccpb.KeyValue) {
	s.wait.Held(s.held)
	w := &s.losses
	w.mu.Lock()
	defer w.mu.Unlock()
	own := waiterName(s.dir(s.req.Key), s.req.Token)
	if !w.has(s.watched, own, name) {
		w.removeAll(s.watched)
		s.watched = []*watched{
			{name: own, from: revision + 1, told: s.tell}, {name: name, end: end, from: revision + 1, told: s.tell},
		}
		for _, e := range s.watched {
			w.add(e)
		}
	}
	return &mvccpb.KeyValue{Key: []byte(name)}
}

// tell wakes the waiter.
func (s *seeker) tell() {
	select {
	case s.news <- false:
	default: // it has not looked since the last one
	}
}

// stop ends the watches.
func (s *seeker) stop() {
	w := &s.losses
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeAll(s.watched)
	s.watched = nil
}

// sleep waits until something that is watched is deleted, or until it is time for the next contact.
func (s *seeker) sleep(ctx context.Context, before *mvccpb.KeyValue, pause time.Duration) error {
	if before != nil {
		pause = max(time.Second, s.lease.third()-time.Since(s.lease.sent))
	}
	_, err := s.wait.Sleep(ctx, pause, s.news)
	return err
}
