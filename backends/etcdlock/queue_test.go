package etcdlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/clientwait"
	"github.com/golocker/locker/internal/testing/etcdtest"
	"github.com/golocker/locker/lockertrace"
)

// queueing is a call of Queue.
type queueing struct {
	backend.Backend
	req   backend.Request
	waits atomic.Int32 // calls of Waiting
	done  chan backend.Grant
}

// queue calls Queue on a Backend of its own, and returns when the lock has n entries.
func (s *store) queue(key string, ttl time.Duration, n int) *queueing {
	s.t.Helper()
	b := s.open()
	s.t.Cleanup(func() { s.must(b.Close()) })
	q := &queueing{Backend: b, done: make(chan backend.Grant, 1)}
	q.req = backend.Request{
		Key: key, Token: backend.NewToken(), TTL: ttl,
	}
	ctx := lockertrace.With(s.t.Context(), &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { q.waits.Add(1) }})
	wait, _ := clientwait.New(ctx, locker.Patience(time.Minute))
	go func() {
		g, err := b.Queue(ctx, q.req, wait)
		if err != nil {
			s.t.Errorf("Queue: %v", err)
		}
		q.done <- g
	}()
	until(s.t, "the lock is waited for", func() bool { return len(s.left()) == n })
	return q
}

// granted waits for the lock, extends and releases it.
func (q *queueing) granted(t *testing.T) backend.Grant {
	t.Helper()
	g := <-q.done
	req := q.req
	req.Fence, req.Private = g.Fence, g.Private
	if g.Token != "" {
		req.Token = g.Token
	}
	if err := q.Extend(t.Context(), req); err != nil {
		t.Errorf("Extend: %v", err)
	}
	if err := q.Release(t.Context(), req); err != nil {
		t.Errorf("Release: %v", err)
	}
	return g
}

// losesItsPlace deletes the entry of the first of two waiters. It queues again behind the other one, with another
// token, and says only once that it waits.
func losesItsPlace(t *testing.T, s *store) {
	for _, ttl := range []time.Duration{10 * time.Second, time.Hour} {
		holder := lock(t, s.client(), "k")
		first, second := s.queue("k", ttl, 2), s.queue("k", ttl, 3)
		_, err := s.direct.Delete(t.Context(), s.prefix+"k/"+first.req.Token)
		s.must(err)
		until(t, "the first waiter queues again", func() bool { return len(s.left()) == 3 })
		unlock(t, holder)
		b, a := second.granted(t), first.granted(t)
		if b.Fence <= holder.Fence() || a.Fence <= b.Fence {
			t.Errorf("TTL %v: expected growing tokens, seen %d, %d, %d", ttl, holder.Fence(), b.Fence, a.Fence)
		}
		if b.Token != "" || a.Token == "" || a.Token == first.req.Token {
			t.Errorf("TTL %v: expected a new owner value of the first waiter alone, seen %q and %q", ttl, a.Token, b.Token)
		}
		if n := first.waits.Load(); n != 1 {
			t.Errorf("TTL %v: expected one call of Waiting, seen %d", ttl, n)
		}
		until(t, "the store is empty", func() bool { return len(s.left()) == 0 })
	}
}

func queuesAgain(t *testing.T, s *store) {
	holder := lock(t, s.client(), "k")
	waiter := s.client()
	result := make(chan locker.Lease)
	go func() { result <- lock(t, waiter, "k") }()
	until(t, "the lock is waited for", func() bool { return len(s.left()) == 2 })
	before := s.left()[1]
	if before == s.prefix+"k/"+holder.Token() {
		before = s.left()[0]
	}
	_, err := s.direct.Delete(t.Context(), before)
	s.must(err)
	until(t, "the waiter queues again", func() bool { return len(s.left()) == 2 })
	unlock(t, holder)
	lease := <-result
	if before == s.prefix+"k/"+lease.Token() {
		t.Error("expected another entry, seen the one that was deleted")
	}
	unlock(t, lease)
}

// deadWaiter has an entry between two others that nobody renews, as that of a process that was killed.
func deadWaiter(t *testing.T, s *store) {
	l := s.client()
	holder := lock(t, l, "k")
	dead, err := s.direct.Grant(t.Context(), 3)
	s.must(err)
	_, err = s.direct.Put(t.Context(), s.prefix+"k/dead", "", clientv3.WithLease(dead.ID))
	s.must(err)
	result := make(chan locker.Lease)
	go func() { result <- lock(t, s.client(), "k", locker.TTL(time.Hour)) }()
	until(t, "the lock is waited for", func() bool { return len(s.left()) == 3 })
	unlock(t, holder)
	lease := <-result
	seen, err := l.Inspect(t.Context(), "k")
	s.must(err)
	if seen.State != inspect.Held || seen.Remaining < time.Minute {
		t.Errorf("expected the waiter to hold the lock for its TTL of an hour, seen %+v", seen)
	}
	unlock(t, lease)
	until(t, "the store is empty", func() bool { return len(s.left()) == 0 })
}

// etcd refuses requests at first, and is silent when the patience of the waiter is nearly over.
func TestPatienceBoundsTheLastContact(t *testing.T) {
	const patience = 2100 * time.Millisecond
	s := newStore(t, etcdtest.Start(t))
	_ = lock(t, s.client(), "k", locker.TTL(time.Minute))
	var refuses atomic.Bool
	wait, _ := clientwait.New(t.Context(), locker.Patience(patience))
	c := connect(t, clientv3.Config{
		Endpoints: []string{s.member.Addr()},
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
			cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			left, failing := wait.Left()
			switch {
			case failing && left < 5*time.Millisecond:
				<-ctx.Done()
				return status.FromContextError(ctx.Err()).Err()
			case refuses.Load():
				return status.Error(codes.Unavailable, "refused")
			}
			return invoker(ctx, method, req, reply, cc, opts...)
		})},
	})
	b := etcdlock.NewBackend(c, etcdlock.Prefix(s.prefix))
	defer b.Close()
	done := make(chan error, 1)
	go func() {
		_, err := b.Queue(t.Context(), backend.Request{Key: "k", Token: backend.NewToken(), TTL: 20 * time.Second}, wait)
		done <- err
	}()
	until(t, "waits", func() bool { return len(s.left()) == 2 })
	refuses.Store(true)
	err := <-done
	left, _ := wait.Left()
	if took := patience - left; took > patience+3*time.Second { // a contact may take 5 s
		t.Errorf("it returned %v after %v", err, took)
	}
}
