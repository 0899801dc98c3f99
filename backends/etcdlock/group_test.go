package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/internal/clientwait"
	"github.com/golocker/locker/internal/testing/etcdtest"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

const (
	permitsOf = "{k}#permits"
	locksOf   = "{k}#rw"
)

// permits is a request for weight of n permits.
func permits(n, weight int) backend.Request {
	return backend.Request{
		Key: permitsOf, Token: backend.NewToken(), TTL: 10 * time.Second, Group: &backend.Group{N: n, Weight: weight},
	}
}

// aLock is a request for a lock of a group.
func aLock(kind backend.Kind) backend.Request {
	return backend.Request{
		Key: locksOf, Token: backend.NewToken(), TTL: 10 * time.Second, Group: &backend.Group{Kind: kind},
	}
}

// opened makes a Backend that is closed with the test.
func (s *store) opened() *etcdlock.Backend {
	b := s.open()
	s.t.Cleanup(func() { s.must(b.Close()) })
	return b
}

// before makes a Backend. Its next transaction that rests on a read waits for between.
func (s *store) before(between func()) *etcdlock.Backend {
	var once sync.Once
	k := &leaseBook{before: func(req any) {
		if q, ok := req.(*pb.TxnRequest); ok && slices.ContainsFunc(q.Compare, func(c *pb.Compare) bool {
			return c.Result == pb.Compare_LESS && len(c.RangeEnd) > 0
		}) {
			once.Do(between)
		}
	}}
	b := etcdlock.NewBackend(k.client(s), etcdlock.Prefix(s.prefix))
	s.t.Cleanup(func() { s.must(b.Close()) })
	return b
}

// takes acquires what is free.
func (s *store) takes(b *etcdlock.Backend, req backend.Request) backend.Request {
	s.t.Helper()
	g, err := b.Acquire(s.t.Context(), req)
	s.must(err)
	req.Fence, req.Private = g.Fence, g.Private
	return req
}

// awaits calls Queue, and returns when the caller waits.
func (s *store) awaits(b *etcdlock.Backend, req backend.Request) (result <-chan error, leave func()) {
	s.t.Helper()
	ctx, leave := context.WithCancel(s.t.Context())
	wait, _ := clientwait.New(ctx, locker.Patience(time.Minute))
	done := make(chan error, 1)
	go func() {
		_, err := b.Queue(ctx, req, wait)
		done <- err
	}()
	until(s.t, "the caller waits", func() bool {
		return slices.Contains(s.left(), s.prefix+req.Key+"/%"+req.Token)
	})
	return done, leave
}

// The tests of this file that share a member.
func TestGroups(t *testing.T) {
	shared := etcdtest.Start(t)
	for name, test := range map[string]func(t *testing.T, s *store){
		"permits under contention":                        func(t *testing.T, s *store) { crowds(t, s, permitsOf) },
		"locks under contention":                          func(t *testing.T, s *store) { crowds(t, s, locksOf) },
		"what is free is not granted twice":               grantsComeOneAfterAnother,
		"a newcomer overtakes nobody who comes meanwhile": overtakesNobody,
		"nobody is served beside an upgrade":              servesNobodyBesideAnUpgrade,
		"an upgrade is of a lock that is upgradeable":     upgradesNoSharedLock,
		"what a waiter gets that has left goes to others": servesOnlyWhoIsThere,
		"more waiters than a transaction serves":          servesMany,
		"locks and entries of groups refuse each other":   refusesOthers,
		"a first waiter that has died delays nobody long": deadFirstWaiter,
		"a waiter that loses its place queues again":      losesItsSeat,
		"many that try at once get what is free":          grantsAllThatTry,
		"a kept permit stays taken":                       keepsPermits,
		"a free place is one step":                        costsOfFreePlaces,
		"only the first waiter looks at the group":        watchesTheOneBefore,
		"a downgrade is told to those that wait":          downgradeIsTold,
		"a caller that tries gets what a dead waiter leaves": func(t *testing.T, s *store) {
			comesBehindADeadWaiter(t, s, func(b *etcdlock.Backend, req backend.Request) (backend.Grant, error) {
				return b.Acquire(t.Context(), req)
			})
		},
		"a waiter gets what a dead waiter leaves": func(t *testing.T, s *store) {
			comesBehindADeadWaiter(t, s, func(b *etcdlock.Backend, req backend.Request) (backend.Grant, error) {
				wait, _ := clientwait.New(t.Context(), locker.Patience(time.Minute))
				return b.Queue(t.Context(), req, wait)
			})
		},
		"nobody waits for one that tries":   passesWhoTries,
		"a waiter whose hook panics leaves": leavesAfterAPanic,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newStore(t, shared))
		})
	}
}

func grantsComeOneAfterAnother(t *testing.T, s *store) {
	b := s.opened()
	first := s.takes(b, permits(2, 1))
	var second backend.Request
	late := s.before(func() { second = s.takes(b, permits(2, 1)) })
	if g, err := late.Acquire(t.Context(), permits(2, 1)); !errors.Is(err, locker.ErrHeld) {
		t.Errorf("a permit that was free when it was read: expected ErrHeld, seen %v, %v", g.Permits, err)
	}
	s.must(b.Release(t.Context(), first))
	s.must(b.Release(t.Context(), second))
	s.judge(permitsOf)
}

func overtakesNobody(t *testing.T, s *store) {
	b := s.opened()
	first := s.takes(b, permits(3, 2))
	var done <-chan error
	late := s.before(func() { done, _ = s.awaits(b, permits(3, 2)) })
	if g, err := late.Acquire(t.Context(), permits(3, 1)); !errors.Is(err, locker.ErrHeld) {
		t.Errorf("a permit, while somebody begins to wait: expected ErrHeld, seen %v, %v", g.Permits, err)
	}
	s.must(b.Release(t.Context(), first))
	s.must(<-done)
	s.judge(permitsOf)
}

// A reader waits behind a writer behind one that may become a writer. When the writer leaves, it has room. Its grant
// is on its way when the upgrade is granted.
func servesNobodyBesideAnUpgrade(t *testing.T, s *store) {
	b := s.opened()
	up := s.takes(b, aLock(backend.Upgradeable))
	_, leave := s.awaits(b, aLock(backend.Exclusive))
	upgrade := aLock(backend.Exclusive)
	upgrade.Group.From = up.Token
	granted := make(chan backend.Request, 1)
	late := s.before(func() { granted <- s.takes(b, upgrade) })
	reads, _ := s.awaits(late, aLock(backend.Shared))
	leave()
	upgrade = <-granted
	select {
	case err := <-reads:
		t.Fatalf("a reader beside a writer: %v", err)
	case <-time.After(100 * time.Millisecond): // nothing tells that it was not served
	}
	s.must(b.Release(t.Context(), upgrade))
	s.must(<-reads)
	s.must(b.Release(t.Context(), up))
	s.judge(locksOf)
}

func upgradesNoSharedLock(t *testing.T, s *store) {
	b := s.opened()
	up := s.takes(b, aLock(backend.Upgradeable))
	upgrade := aLock(backend.Exclusive)
	upgrade.Group.From = up.Token
	late := s.before(func() {
		up.Group = &backend.Group{Kind: backend.Shared}
		s.must(b.Extend(t.Context(), up))
	})
	if _, err := late.Acquire(t.Context(), upgrade); !errors.Is(err, locker.ErrNotHeld) {
		t.Errorf("an upgrade of a lock that has become a shared one: expected ErrNotHeld, seen %v", err)
	}
	s.must(b.Release(t.Context(), up))
	s.judge(locksOf)
}

func servesOnlyWhoIsThere(t *testing.T, s *store) {
	b := s.opened()
	all := s.takes(b, permits(3, 3))
	var leave func()
	late := s.before(func() {
		leave()
		until(t, "one has left", func() bool { return len(s.left()) == 2 })
	})
	first, _ := s.awaits(late, permits(3, 2))
	_, leave = s.awaits(b, permits(3, 1))
	last, _ := s.awaits(b, permits(3, 1))
	s.must(b.Release(t.Context(), all))
	s.must(<-first)
	s.must(<-last)
	s.judge(permitsOf)
}

func servesMany(t *testing.T, _ *store) {
	for _, tt := range []struct {
		key, ops string
		waiters  int
	}{
		{locksOf, "128", 70}, {locksOf, "16", 70},
		{strings.Repeat("k", 20<<10) + locksOf, "128", 40}, // more than etcd takes as one transaction
		{strings.Repeat("k", 60<<10) + locksOf, "128", 80}, // and than gRPC reads as one answer
	} {
		s := newStore(t, etcdtest.Start(t, "--max-txn-ops="+tt.ops))
		b := s.opened()
		asks := func(kind backend.Kind) backend.Request {
			req := aLock(kind)
			req.Key = tt.key
			return req
		}
		writes := asks(backend.Exclusive)
		writes.TTL = time.Hour
		written := s.takes(b, writes)
		var reads []<-chan error
		for range tt.waiters {
			done, _ := s.awaits(b, asks(backend.Shared))
			reads = append(reads, done)
		}
		s.must(b.Release(t.Context(), written))
		for _, done := range reads {
			s.must(<-done)
		}
		s.judge(tt.key)
	}
}

// refusesOthers: a lock with the name of a group, and programs that make a lock of each place.
func refusesOthers(t *testing.T, s *store) {
	b := s.opened()
	foreign := func(what string, req backend.Request) {
		t.Helper()
		if _, err := b.Acquire(t.Context(), req); !errors.Is(err, locker.ErrForeignKey) {
			t.Errorf("%s: expected ErrForeignKey, seen %v", what, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		wait, _ := clientwait.New(ctx, locker.Patience(time.Minute))
		if _, err := b.Queue(ctx, req, wait); !errors.Is(err, locker.ErrForeignKey) {
			t.Errorf("Queue, %s: expected ErrForeignKey, seen %v", what, err)
		}
	}
	plain := func(key string) backend.Request {
		return backend.Request{Key: key, Token: backend.NewToken(), TTL: 10 * time.Second}
	}
	for _, tt := range []struct {
		group  backend.Request
		places []string
	}{
		{permits(2, 1), []string{permitsOf, "{k}#gate", "{k}#0"}},
		{aLock(backend.Shared), []string{locksOf, "{k}#rwgate", "{k}#rwintent", "{k}#rw0"}},
	} {
		for _, place := range tt.places {
			held := s.takes(b, plain(place))
			foreign("an entry of a group beside the lock "+place, tt.group)
			s.must(b.Release(t.Context(), held))
		}
		held := s.takes(b, tt.group)
		foreign("a lock with the name of a group", plain(tt.group.Key))
		other := permits(2, 1)
		if tt.group.Group.Kind == backend.Permit {
			other = aLock(backend.Shared)
		}
		other.Key = tt.group.Key
		foreign("an entry of another sort", other)
		s.must(b.Release(t.Context(), held))
		until(t, "nothing is left", func() bool { return len(s.left()) == 0 })
	}
}

func deadFirstWaiter(t *testing.T, s *store) {
	b := etcdlock.NewBackend(s.direct, etcdlock.Prefix(s.prefix))
	defer func() { s.must(b.Close()) }()
	dying := s.opened()
	all := s.takes(b, permits(2, 2))
	req := permits(2, 1)
	req.TTL = time.Hour // the entry of a waiter ends before
	_, leave := s.awaits(dying, req)
	next, _ := s.awaits(b, permits(2, 1))
	up := s.relay.Down()
	s.must(b.Release(t.Context(), all))
	s.must(<-next)
	leave()
	up()
}

func losesItsSeat(t *testing.T, s *store) {
	b := s.opened()
	held := s.takes(b, permits(1, 1))
	first, second := permits(1, 1), permits(1, 1)
	one, _ := s.awaits(b, first)
	two, leave := s.awaits(b, second)
	_, err := s.direct.Delete(t.Context(), s.prefix+permitsOf+"/%"+first.Token)
	s.must(err)
	until(t, "the first waiter queues again", func() bool { return len(s.left()) == 3 })
	s.must(b.Release(t.Context(), held))
	s.must(<-two)
	leave()
	s.must(b.Release(t.Context(), second))
	s.must(<-one)
}

func keepsPermits(t *testing.T, s *store) {
	b := s.opened()
	kept := s.takes(b, permits(2, 1))
	kept.Keep = 2 * time.Second
	s.must(b.Release(t.Context(), kept))
	if err := b.Extend(t.Context(), kept); !errors.Is(err, locker.ErrNotHeld) {
		t.Errorf("Extend of a permit that is kept: expected ErrNotHeld, seen %v", err)
	}
	i, err := b.Inspect(t.Context(), permitsOf)
	s.must(err)
	if len(i.Holders) != 1 || i.Holders[0].State != "kept" || !slices.Equal(i.Holders[0].Permits, []int{0}) {
		t.Errorf("a permit that is kept is shown as %+v", i)
	}
	g, err := b.Acquire(t.Context(), permits(2, 1))
	s.must(err)
	if !slices.Equal(g.Permits, []int{1}) {
		t.Errorf("beside a permit that is kept: seen %v", g.Permits)
	}
	until(t, "it is free", func() bool { return len(s.left()) == 1 })
	s.judge(permitsOf)
}

// costsOfFreePlaces counts requests: a free place costs as much as a lock, and so do several places at once. The lease
// is revoked in the background.
func costsOfFreePlaces(t *testing.T, s *store) {
	var mu sync.Mutex
	sent := map[string]int{}
	k := &leaseBook{before: func(req any) {
		mu.Lock()
		defer mu.Unlock()
		sent[fmt.Sprintf("%T", req)]++
	}}
	l := etcdlock.New(k.client(s), etcdlock.Prefix(s.prefix))
	defer func() { s.must(l.Close()) }()
	rw := rwlock.New(l)
	for name, of := range map[string]locker.Locker{
		"lock": l, "permit": semaphore.New(l, 1024), "permits": semaphore.New(l, 1024).Weight(1000),
		"shared": rw.Shared(), "upgradeable": rw.Upgradeable(), "exclusive": rw.Exclusive(),
	} {
		unlock(t, lock(t, of, "warm"))
		mu.Lock()
		clear(sent)
		mu.Unlock()
		unlock(t, lock(t, of, "k"))
		mu.Lock()
		if n := sent["*etcdserverpb.TxnRequest"]; n != 2 || sent["*etcdserverpb.LeaseGrantRequest"] != 1 {
			t.Errorf("%s: expected a lease and two transactions, seen %v", name, sent)
		}
		mu.Unlock()
	}
	b := etcdlock.NewBackend(k.client(s), etcdlock.Prefix(s.prefix))
	defer func() { s.must(b.Close()) }()
	req := s.takes(b, permits(2, 1))
	req.Wanted = func() {}
	mu.Lock()
	clear(sent)
	mu.Unlock()
	s.must(b.Extend(t.Context(), req))
	mu.Lock()
	defer mu.Unlock()
	if sent["*etcdserverpb.TxnRequest"] != 1 {
		t.Errorf("an extension of a permit: expected one transaction, seen %v", sent)
	}
}

// A waiter that has died has room, and has not been served. It keeps nobody out for whom there is room beside it. take
// takes a permit for the first that comes then.
func comesBehindADeadWaiter(
	t *testing.T, s *store, take func(b *etcdlock.Backend, req backend.Request) (backend.Grant, error),
) {
	b := etcdlock.NewBackend(s.direct, etcdlock.Prefix(s.prefix))
	defer func() { s.must(b.Close()) }()
	dying := s.opened()
	all := s.takes(b, permits(3, 3))
	dead := permits(3, 1)
	dead.TTL = time.Hour // the entry of a waiter ends before
	_, leave := s.awaits(dying, dead)
	up := s.relay.Down()
	s.must(b.Release(t.Context(), all))
	for i := 1; i < 3; i++ {
		g, err := take(b, permits(3, 1))
		if s.must(err); !slices.Equal(g.Permits, []int{i}) {
			t.Errorf("beside a dead waiter for one of three: expected permit %d, seen %v", i, g.Permits)
		}
	}
	if g, err := b.Acquire(t.Context(), permits(3, 1)); !errors.Is(err, locker.ErrHeld) {
		t.Errorf("beside a dead waiter and two holders: expected ErrHeld, seen %v, %v", g.Permits, err)
	}
	leave()
	up()
	s.judge(permitsOf)
}

// A caller tries for two permits while one of them is taken, and stands still after it has written that. One that
// wants a permit which is free does not wait for it, neither a newcomer nor a waiter.
func passesWhoTries(t *testing.T, s *store) {
	b := s.opened()
	first := s.takes(b, permits(3, 1))
	wrote, goOn := make(chan bool), make(chan bool)
	var comes, stands sync.Once
	k := &leaseBook{}
	k.before = func(req any) {
		q, ok := req.(*pb.TxnRequest)
		switch {
		case !ok:
		case slices.ContainsFunc(q.Compare, func(c *pb.Compare) bool { return c.Result == pb.Compare_LESS }):
			comes.Do(func() { s.takes(b, permits(3, 1)) })
		case len(q.Compare) == 0 && q.Success[0].GetRequestRange() != nil: // it reads the group
			stands.Do(func() { close(wrote); <-goOn })
		}
	}
	late := etcdlock.NewBackend(k.client(s), etcdlock.Prefix(s.prefix), etcdlock.Timeout(time.Minute))
	defer func() { s.must(late.Close()) }()
	tried := make(chan error)
	go func() {
		req := permits(3, 2)
		req.TTL = time.Hour
		_, err := late.Acquire(t.Context(), req)
		tried <- err
	}()
	<-wrote
	s.takes(b, permits(3, 1))
	next, leave := s.awaits(b, permits(3, 1))
	s.must(b.Release(t.Context(), first))
	s.must(<-next)
	leave()
	close(goOn)
	if err := <-tried; !errors.Is(err, locker.ErrHeld) {
		t.Errorf("a caller that tries for two of three permits, which others have: expected ErrHeld, seen %v", err)
	}
	s.judge(permitsOf)
	until(t, "the caller that has tried has left", func() bool { return len(s.left()) == 3 })
}

// A hook panics in the middle of a wait, for a lock and for an entry of a group.
func leavesAfterAPanic(t *testing.T, s *store) {
	l := s.client()
	for name, of := range map[string]locker.Locker{
		"lock": l, "permit": semaphore.New(l, 1), "writer": rwlock.New(l).Exclusive(),
	} {
		for hook, trace := range map[string]*lockertrace.Trace{
			"Waiting": {Waiting: func(lockertrace.Waiting) { panic("hook") }},
			"Woken":   {Woken: func(lockertrace.Wake) { panic("hook") }},
		} {
			var held locker.Lease
			var p any
			for p == nil { // the caller may be served before it sleeps, and is not woken then
				held = lock(t, of, "k")
				panicked := make(chan any)
				go func() {
					defer func() { panicked <- recover() }()
					next, err := of.Lock(lockertrace.With(t.Context(), trace), "k", locker.TTL(time.Hour))
					if err == nil {
						err = next.Unlock(t.Context())
					}
					if err != nil {
						t.Error(err)
					}
				}()
				if hook == "Woken" {
					until(t, "the caller waits", func() bool { return len(s.left()) == 2 })
					unlock(t, held)
				}
				p = <-panicked
			}
			if p != "hook" {
				t.Errorf("%s, %s: got %v, want the panic of a hook", name, hook, p)
			}
			if hook == "Waiting" {
				until(t, "it has left", func() bool { return len(s.left()) == 1 })
				unlock(t, held)
			}
			until(t, "nothing is left of a "+name, func() bool { return len(s.left()) == 0 })
		}
	}
}

// Many wait for one permit. When it is returned, the first of them looks at the group, and the second one at those
// that wait.
func watchesTheOneBefore(t *testing.T, s *store) {
	b := s.opened()
	held := s.takes(b, permits(1, 1))
	var mu sync.Mutex
	reads := 0
	k := &leaseBook{before: func(req any) {
		q, ok := req.(*pb.TxnRequest)
		if !ok || len(q.Success) == 0 {
			return
		}
		if r := q.Success[0].GetRequestRange(); r != nil && string(r.Key) == s.prefix+permitsOf+"/" {
			mu.Lock()
			defer mu.Unlock()
			reads++
		}
	}}
	others := etcdlock.NewBackend(k.client(s), etcdlock.Prefix(s.prefix))
	defer func() { s.must(others.Close()) }()
	var waiters []backend.Request
	var done []<-chan error
	for range 10 {
		req := permits(1, 1)
		result, _ := s.awaits(others, req)
		waiters, done = append(waiters, req), append(done, result)
	}
	mu.Lock()
	reads = 0
	mu.Unlock()
	s.must(b.Release(t.Context(), held))
	s.must(<-done[0])
	until(t, "the second waiter has looked at the group", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return reads >= 2
	})
	mu.Lock()
	if reads > 4 { // one may look again with its heartbeat
		t.Errorf("10 waiters have read the group %d times", reads)
	}
	mu.Unlock()
	for i, req := range waiters {
		s.must(b.Release(t.Context(), req))
		if i+1 < len(done) {
			s.must(<-done[i+1])
		}
	}
}

func downgradeIsTold(t *testing.T, s *store) {
	b, other := s.opened(), s.opened()
	written := s.takes(b, aLock(backend.Exclusive))
	reads, _ := s.awaits(other, aLock(backend.Shared))
	writes, _ := s.awaits(other, aLock(backend.Exclusive))
	written.Group = &backend.Group{Kind: backend.Shared}
	for range 2 {
		s.must(b.Extend(t.Context(), written))
	}
	s.must(<-reads)
	written.Group = &backend.Group{Kind: backend.Exclusive} // as a renewal that comes late
	s.must(b.Extend(t.Context(), written))
	select {
	case err := <-writes:
		t.Errorf("a writer beside readers: %v", err)
	default:
	}
	s.judge(locksOf)
}
