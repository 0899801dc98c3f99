package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

// leaseBook records what clients ask of leases.
type leaseBook struct {
	mu      sync.Mutex
	granted map[int64]time.Time // when the request was sent
	asked   map[int64]int64     // for how many seconds
	renewed map[int64]bool
	moves   []int // how many entries each transaction that moves some has
	before  func(req any)
}

func (k *leaseBook) note(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

// client makes a client of etcd that writes into the book.
func (k *leaseBook) client(s *store) *clientv3.Client {
	s.t.Helper()
	k.granted, k.asked, k.renewed = map[int64]time.Time{}, map[int64]int64{}, map[int64]bool{}
	unary := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, send grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		if q, ok := req.(*pb.LeaseGrantRequest); ok {
			k.note(func() { k.granted[q.ID], k.asked[q.ID] = time.Now(), q.TTL })
		}
		if q, ok := req.(*pb.TxnRequest); ok && moves(req) {
			k.note(func() { k.moves = append(k.moves, len(q.Success)) })
		}
		if k.before != nil {
			k.before(req)
		}
		return send(ctx, method, req, reply, cc, opts...)
	}
	streams := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
		opts ...grpc.CallOption) (grpc.ClientStream, error) {
		stream, err := open(ctx, desc, cc, method, opts...)
		return &bookedStream{stream, k}, err
	}
	return connect(s.t, clientv3.Config{
		Endpoints: []string{s.member.Addr()},
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(streams),
		},
	})
}

type bookedStream struct {
	grpc.ClientStream
	book *leaseBook
}

func (s *bookedStream) SendMsg(m any) error {
	if q, ok := m.(*pb.LeaseKeepAliveRequest); ok {
		s.book.note(func() { s.book.renewed[q.ID] = true })
	}
	return s.ClientStream.SendMsg(m)
}

// renewals counts the leases of the book that were renewed. The first request of a Client, which asks whether the
// server is etcd, renews one that does not exist.
func (k *leaseBook) renewals() (n int) {
	k.note(func() {
		for id := range k.renewed {
			if _, ok := k.granted[id]; ok {
				n++
			}
		}
	})
	return n
}

// leaseOf returns the lease of a lock's entry.
func (s *store) leaseOf(lease locker.Lease) int64 {
	s.t.Helper()
	resp, err := s.direct.Get(s.t.Context(), s.prefix+lease.Key()+"/"+lease.Token())
	s.must(err)
	if len(resp.Kvs) != 1 {
		s.t.Fatalf("%s has no entry", lease.Key())
	}
	return resp.Kvs[0].Lease
}

// A leader that has stood still ends the leases that its successor has renewed. So the entry of a holder never has a
// lease that was renewed: not after extensions, not after a wait in which the waiter has renewed its entry, not if the
// request is executed twice.
func TestHoldersLeasesAreNeverRenewed(t *testing.T) {
	t.Parallel()
	s, k := newStore(t, etcdtest.Start(t)), new(leaseBook)
	client := k.client(s)
	b := etcdlock.NewBackend(client, etcdlock.Prefix(s.prefix))
	l := locker.NewClient(b)
	t.Cleanup(func() { s.must(l.Close()) })
	check := func(when string, held ...locker.Lease) {
		t.Helper()
		for _, lease := range held {
			id := s.leaseOf(lease)
			k.note(func() {
				if k.renewed[id] {
					t.Errorf("%s: the entry of %s has a lease that was renewed", when, lease.Key())
				}
			})
		}
	}
	extended := func(lease locker.Lease) {
		t.Helper()
		first := s.leaseOf(lease)
		until(t, "the entry has another lease", func() bool { return s.leaseOf(lease) != first })
	}

	one := lock(t, l, "one", locker.TTL(3*time.Second))
	all, err := locker.TryLockAll(t.Context(), l, []string{"a", "b", "c"}, locker.TTL(3*time.Second))
	s.must(err)
	check("a new lock", one)
	extended(one)
	s.must(one.Extend(t.Context()))
	s.must(one.Extend(t.Context(), locker.TTL(time.Minute)))
	s.must(all.Extend(t.Context()))
	if n := k.renewals(); n > 0 {
		t.Errorf("extensions have renewed %d leases", n)
	}

	for _, ttl := range []time.Duration{5 * time.Second, time.Minute} { // the first is that of a waiter's entry, too
		holder, before := lock(t, s.client(), "queue"), k.renewals()
		next := make(chan locker.Lease)
		go func() { next <- lock(t, l, "queue", locker.TTL(ttl)) }()
		until(t, "the waiter has renewed its entry", func() bool { return k.renewals() > before })
		unlock(t, holder)
		lease := <-next
		check("after a wait", lease)
		s.must(lease.Extend(t.Context(), locker.TTL(2*ttl)))
		check("after a wait and an extension", lease)
		unlock(t, lease)
	}

	req := backend.Request{Key: "twice", Token: backend.NewToken(), TTL: 3 * time.Second}
	for range 2 {
		g, err := b.Acquire(t.Context(), req)
		s.must(err)
		req.Private, req.Fence = g.Private, g.Fence
	}
	s.must(b.Extend(t.Context(), req))
	s.must(b.Release(t.Context(), req))
	check("at the end", one)
	unlock(t, one)
	unlock(t, all)
	s.noLeases()
}

// The test does to leases what a leader does that has stood still: it ends those whose time would be over, had they not
// been renewed. The locks that are held go on, and nobody else gets one.
func TestLeaderThatForgetsRenewalsEndsNoLock(t *testing.T) {
	t.Parallel()
	s, k := newStore(t, etcdtest.Start(t)), new(leaseBook)
	l := etcdlock.New(k.client(s), etcdlock.Prefix(s.prefix))
	t.Cleanup(func() { s.must(l.Close()) })
	const ttl = 3 * time.Second
	start := time.Now()
	first := lock(t, l, "k0", locker.TTL(ttl))
	held := []locker.Lease{first}
	for i := range 5 {
		held = append(held, lock(t, l, fmt.Sprint("k", i+1), locker.TTL(ttl)))
	}
	until(t, "the first leases are over", func() bool { return time.Since(start) > ttl+time.Second })
	for _, lease := range held {
		s.must(lease.Extend(t.Context()))
	}
	var over []int64
	k.note(func() {
		for id, sent := range k.granted {
			if time.Since(sent) >= time.Duration(k.asked[id])*time.Second {
				over = append(over, id)
			}
		}
	})
	if len(over) < len(held) {
		t.Fatalf("expected the leases of %d acquisitions, seen %d", len(held), len(over))
	}
	for _, id := range over {
		_, _ = s.direct.Revoke(t.Context(), clientv3.LeaseID(id)) // most are revoked already
	}
	other := s.client()
	for _, lease := range held {
		if _, err := other.TryLock(t.Context(), lease.Key()); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("%s: expected ErrHeld, seen %v", lease.Key(), err)
		}
		s.must(lease.Err())
		unlock(t, lease)
	}
}

// Locks that are acquired or extended together share a lease. The release of one lock ends that one alone, and the
// lease ends with the last one.
func TestReleaseSparesLocksWithTheSameLease(t *testing.T) {
	t.Parallel()
	s := newStore(t, etcdtest.Start(t))
	l := s.client()
	pair, err := locker.TryLockAll(t.Context(), l, []string{"a", "b"}, locker.TTL(time.Hour))
	s.must(err)
	resp, err := s.direct.Leases(t.Context())
	s.must(err)
	if n := len(resp.Leases); n != 1 {
		t.Errorf("two locks in one step: expected one lease, seen %d", n)
	}
	var held []locker.Lease
	for i := range 4 {
		held = append(held, lock(t, l, fmt.Sprint(i), locker.TTL(time.Hour)))
	}
	all := locker.NewAllLease(held...)
	until(t, "two locks share a lease", func() bool {
		s.must(all.Extend(t.Context()))
		return s.leaseOf(held[0]) == s.leaseOf(held[1])
	})
	unlock(t, held[0])
	unlock(t, lock(t, l, "other")) // whose clean-up comes after that of the first
	until(t, "five locks have leases", func() bool {
		resp, err := s.direct.Leases(t.Context())
		s.must(err)
		return len(resp.Leases) <= 1+3
	})
	for _, lease := range held[1:] {
		s.must(locker.Verify(t.Context(), lease))
	}
	s.must(locker.Verify(t.Context(), pair))
	for _, lease := range append(held[1:], pair) {
		unlock(t, lease)
	}
	s.noLeases()
}

// The answer to an extension is lost. The lock goes on, whichever of its two leases the entry has, and the next
// extension ends the others.
func TestExtensionWithoutAnswerEndsNoLock(t *testing.T) {
	t.Parallel()
	s := newStore(t, etcdtest.Start(t))
	l := s.client()
	lease := lock(t, l, "k", locker.TTL(time.Hour), locker.NoRenewal())
	first := s.leaseOf(lease)
	s.relay.Lose(2) // the first is for the grant
	if err := lease.Extend(t.Context()); !errors.Is(err, locker.ErrUnavailable) {
		t.Fatalf("expected ErrUnavailable, seen %v", err)
	}
	if s.leaseOf(lease) == first {
		t.Fatal("the request was not executed")
	}
	unlock(t, lock(t, l, "other"))
	leases := func(n int) func() bool {
		return func() bool {
			resp, err := s.direct.Leases(t.Context())
			s.must(err)
			return len(resp.Leases) == n
		}
	}
	until(t, "the other lock's lease is revoked", leases(2))
	s.must(locker.Verify(t.Context(), lease))
	s.must(lease.Extend(t.Context()))
	until(t, "the lock has one lease", leases(1))
	s.must(locker.Verify(t.Context(), lease))
	unlock(t, lease)
	s.noLeases()
}

// etcd refuses a transaction that is too large, whatever its limit is. The locks are extended in smaller ones.
func TestExtensionsFitIntoTransactions(t *testing.T) {
	t.Parallel()
	s, k := newStore(t, etcdtest.Start(t, "--max-txn-ops=8")), new(leaseBook)
	l := etcdlock.New(k.client(s), etcdlock.Prefix(s.prefix))
	t.Cleanup(func() { s.must(l.Close()) })
	var held []locker.Lease
	for i := range 20 {
		held = append(held, lock(t, l, fmt.Sprint(i), locker.TTL(time.Hour)))
	}
	s.must(locker.NewAllLease(held...).Extend(t.Context()))
	k.note(func() {
		if len(k.moves) < 4 {
			t.Errorf("expected four transactions or more, seen %d", len(k.moves))
		}
	})
	for _, lease := range held {
		unlock(t, lease)
	}
	s.noLeases()
}

// While somebody looks at a lock, or takes it away, it is extended.
func TestExtensionsDisturbNobody(t *testing.T) {
	t.Parallel()
	s, k := newStore(t, etcdtest.Start(t)), new(leaseBook)
	lease := lock(t, s.client(), "k", locker.TTL(time.Hour), locker.NoRenewal())
	once := new(sync.Once)
	k.before = func(req any) {
		if _, ok := req.(*pb.LeaseTimeToLiveRequest); ok {
			once.Do(func() {
				first := s.leaseOf(lease)
				s.must(lease.Extend(t.Context()))
				until(t, "the former lease is revoked", func() bool {
					left, err := s.direct.TimeToLive(t.Context(), clientv3.LeaseID(first))
					s.must(err)
					return left.TTL < 0
				})
			})
		}
	}
	l := etcdlock.New(k.client(s), etcdlock.Prefix(s.prefix))
	t.Cleanup(func() { s.must(l.Close()) })
	seen, err := l.Inspect(t.Context(), "k")
	s.must(err)
	if seen.Remaining < 59*time.Minute {
		t.Errorf("Inspect during an extension: expected an hour to remain, seen %+v", seen)
	}
	once = new(sync.Once)
	if _, err := l.ForceRelease(t.Context(), "k", lease.Token()[:8]); err != nil {
		t.Errorf("ForceRelease during an extension: %v", err)
	}

	// A mutex of etcd that waits is not told of extensions, and gets the lock in the end.
	lease = lock(t, s.client(), "k", locker.TTL(time.Hour), locker.NoRenewal())
	session, err := concurrency.NewSession(s.direct, concurrency.WithTTL(60))
	s.must(err)
	t.Cleanup(func() { s.must(session.Close()) })
	m, locked := concurrency.NewMutex(session, s.prefix+"k"), make(chan error, 1)
	go func() { locked <- m.Lock(t.Context()) }()
	until(t, "the mutex waits", func() bool { return len(s.left()) == 2 })
	for range 3 {
		s.must(lease.Extend(t.Context()))
	}
	select {
	case err := <-locked:
		t.Fatalf("the mutex is locked while the lock is held: %v", err)
	default:
	}
	unlock(t, lease)
	s.must(<-locked)
}

// A TTL is rounded up to whole seconds. Rounded down, etcd would end the lock before its holder knows.
func TestTTLsAreRoundedUp(t *testing.T) {
	t.Parallel()
	s, k := newStore(t, etcdtest.Start(t)), new(leaseBook)
	b := etcdlock.NewBackend(k.client(s), etcdlock.Prefix(s.prefix))
	defer b.Close()
	for _, ttl := range []time.Duration{
		time.Second, 1001 * time.Millisecond, 1500 * time.Millisecond, 2999 * time.Millisecond, 10*time.Second + 1,
	} {
		held := locker.NewClient(b)
		lease := lock(t, held, "k", locker.TTL(ttl), locker.MinHold(ttl), locker.NoRenewal())
		granted := func(what string) {
			t.Helper()
			resp, err := s.direct.Get(t.Context(), s.prefix+"k/", clientv3.WithPrefix())
			s.must(err)
			for _, kv := range resp.Kvs {
				var asked int64
				k.note(func() { asked = k.asked[kv.Lease] })
				if time.Duration(asked)*time.Second < ttl {
					t.Errorf("%s of %v: the lease has a TTL of %d s", what, ttl, asked)
				}
			}
		}
		granted("a lock")
		s.must(lease.Extend(t.Context()))
		granted("an extension")
		s.delete("k")
	}
}
