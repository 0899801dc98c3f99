package record

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// lane has the edits of one group's record that this process has in progress. One of their callers leads: it reads the
// record and writes it for all. So what comes together is one request, and edits of one process do not refuse each
// other. When the leader's own edit is done, or its context has ended, another caller leads.
type lane struct {
	users int           // calls in progress; guarded by the mu of lanes
	turn  chan struct{} // has a value while somebody leads
	joins chan struct{} // has a value if a member has come

	mu      sync.Mutex // guards the following, and the edits of the members
	members []*rider
	newest  *sheet             // the record as it was known last; nil if that is not known
	at      time.Time          // when newest was known
	version string             // of the last record that was known
	others  bool               // other processes write the record, too, so it is read before it is written
	mine    map[string]bool    // the owners of locks that this process has
	pace    pace               // of its writes
	giveUp  context.CancelFunc // of the request in flight
	sent    time.Time          // when that was sent
}

// rider is an edit in a lane.
type rider struct {
	edit
	over chan struct{} // is closed when the edit is done
	done bool
	err  error
}

// linger is how long a renewal or a release waits for others, if the process has more locks of the group. Those that
// are due together come within that time.
const linger = 2 * time.Millisecond

// maxLanes is from how many lanes on those that are not in use are forgotten.
const maxLanes = 1000

// lanes has the lanes by the names of their records. The zero value is ready for use.
type lanes struct {
	mu  sync.Mutex
	all recent[*lane]
}

func (ls *lanes) enter(name string) *lane {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	at := ls.all.use(name)
	if at == nil {
		if oldest, l := ls.all.oldest(); l != nil && len(ls.all.byName) >= maxLanes && (*l).users == 0 {
			ls.all.drop(oldest)
		}
		at = ls.all.add(name)
		*at = &lane{turn: make(chan struct{}, 1), joins: make(chan struct{}, 1), mine: make(map[string]bool)}
	}
	(*at).users++
	return *at
}

func (ls *lanes) leave(l *lane) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.users--
}

// glance returns what a group's record said less than age ago, or nil.
func (b *Backend) glance(p place, age time.Duration) *sheet {
	if p.at == "" || age <= 0 {
		return nil
	}
	l := b.lanes.enter(p.name)
	defer b.lanes.leave(l)
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.at) >= age {
		return nil
	}
	return l.newest
}

// join carries out an edit of a group's record, together with others.
func (b *Backend) join(ctx context.Context, name string, e edit) (err error) {
	l := b.lanes.enter(name)
	defer b.lanes.leave(l)
	m := &rider{edit: e, over: make(chan struct{})}
	l.mu.Lock()
	l.members = append(l.members, m)
	l.mu.Unlock()
	leads := false
	defer func() { // also if the Store panics
		err = l.part(ctx, m)
		if leads {
			<-l.turn
		}
	}()
	select {
	case l.joins <- struct{}{}:
	default:
	}
	select {
	case <-m.over:
	case <-ctx.Done():
	case l.turn <- struct{}{}:
		leads = true
		if _, renews := e.(*renewal); renews && !l.has(m) {
			l.gather(ctx)
		}
		denied := 0
		for n := 0; !l.has(m) && ctx.Err() == nil; n++ {
			b.lead(ctx, l, m, name, &denied, n)
		}
	}
	return nil
}

// part ends an edit whose caller waits no longer, and returns its error.
func (l *lane) part(ctx context.Context, m *rider) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !m.done {
		if r, renews := m.edit.(*renewal); renews && l.giveUp != nil && time.Since(l.sent) >= r.req.TTL/8 {
			l.giveUp() // the request of another one may hang, and renewals must not wait for it until the lease ends
		}
		l.finish(m, unavailable(ctx.Err()))
	}
	return m.err
}

// has reports whether a member is done.
func (l *lane) has(m *rider) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return m.done
}

// gather waits until there is a member for each lock that the process has, or for as long as they may take to come.
func (l *lane) gather(ctx context.Context) {
	bound := time.NewTimer(linger)
	defer bound.Stop()
	for {
		l.mu.Lock()
		all := len(l.members) >= len(l.mine)
		l.mu.Unlock()
		if all {
			return
		}
		select {
		case <-l.joins:
		case <-bound.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// finish ends an edit. Call with mu held.
func (l *lane) finish(m *rider, err error) {
	l.members = slices.DeleteFunc(l.members, func(other *rider) bool { return other == m })
	if a, ok := m.edit.(*attempt); ok {
		for i, g := range a.grants {
			if g != nil && err == nil {
				l.mine[a.reqs[i].Token] = true
			}
		}
	}
	m.done, m.err = true, err
	close(m.over)
}

// knows notes what the record says. Call with mu held.
func (l *lane) knows(s *sheet) {
	l.newest, l.at, l.version = s, time.Now(), s.version
	owners := make(map[string]bool, len(s.locks))
	for _, c := range s.locks {
		owners[c.Owner] = c.State == held
	}
	for owner := range l.mine {
		if !owners[owner] {
			delete(l.mine, owner)
		}
	}
}

// lead makes one round for all members: it lets them look at the record, and writes what they want. self is the caller,
// denied counts what run counts, and this is the round n of its turn.
func (b *Backend) lead(ctx context.Context, l *lane, self *rider, name string, denied *int, n int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.giveUp = cancel
	s, present := l.newest, []*rider(nil)
	if s == nil || l.others {
		present = slices.Clone(l.members)
		var err error
		l.sent = time.Now()
		l.without(func() { s, err = b.get(ctx, name, true) })
		if err != nil {
			l.fail(ctx, slices.Clone(l.members), func(m *rider) error { return m.unread(err) })
			return
		}
		l.others = l.version != "" && s.version != l.version
		l.knows(s)
	}
	batch, changes := b.look(l, self, s, present)
	if len(changes) == 0 {
		return
	}
	if d := l.pace.rest(s, l.mine); d > 0 {
		l.without(func() { sleep(ctx, d) }) // and then they look again
		return
	}
	for _, m := range batch {
		m.sends(s)
	}
	next, text := b.draw(s, changes)
	present = slices.Clone(l.members)
	l.newest = nil
	var written *sheet
	var err error
	l.sent = time.Now()
	l.without(func() { written, err = b.put(ctx, s, next, text) })
	batch = slices.DeleteFunc(batch, func(m *rider) bool { return m.done })
	for _, m := range batch {
		if m.ends(err) {
			l.finish(m, m.result())
		}
	}
	switch {
	case err == nil:
		l.knows(written)
		l.pace.wrote()
		for _, m := range present { // those of the batch write again if it does not last, and the others may be refused
			if !m.done && len(m.look(written, true)) == 0 {
				l.finish(m, m.result())
			}
		}
		return
	case !errors.Is(err, ErrConflict):
		l.fail(ctx, batch, func(*rider) error { return err })
		return
	}
	l.others = true
	if s.version != "" {
		*denied = 0
	} else if *denied++; *denied == maxDenied {
		l.fail(context.Background(), batch, func(*rider) error { return errDenied })
		return
	}
	l.without(func() { _ = pause(ctx, min(n, 5)) }) // join sees that it has ended
}

// without calls f without mu. It has mu again afterwards, also if f panics: the Store may.
func (l *lane) without(f func()) {
	l.mu.Unlock()
	defer l.mu.Lock()
	f()
}

// look lets the members look at the record, and returns what they want to write. Each sees what those before it want to
// write, too. Nobody is told anything because of that, because it may not come to be. Those who came when the record
// was on its way are told nothing either: it may be older than their calls. present are the others. Call with mu held.
func (b *Backend) look(l *lane, self *rider, s *sheet, present []*rider) (batch []*rider, changes []change) {
	view := s
	for _, m := range slices.Clone(l.members) {
		fresh := slices.Contains(present, m)
		wants := m.look(s, fresh)
		done, err := fresh && len(wants) == 0, error(nil)
		if done {
			err = m.result()
		}
		if view != s && (!done || err != nil) { // one that is refused may get what another one is to release
			wants = m.look(view, false)
		}
		for _, c := range wants { // an edit of the same lock, by one of those behind, goes on from its end
			b.stamp(c.next, c.own, c.misses)
		}
		switch {
		case len(wants) > 0:
			batch, changes = append(batch, m), append(changes, wants...)
			view = view.with(wants)
		case done:
			l.finish(m, err)
		}
	}
	if len(changes) == 0 && len(l.members) > 0 {
		l.others = true // what was believed does not do
	}
	if self.done { // its caller does not wait for the others
		return nil, nil
	}
	return batch, changes
}

// fail ends the edits of members, unless the request has failed because its context has ended: whoever waits yet tries
// again. Call with mu held.
func (l *lane) fail(ctx context.Context, members []*rider, why func(m *rider) error) {
	for _, m := range members {
		if !m.done && ctx.Err() == nil {
			l.finish(m, why(m))
		}
	}
}
