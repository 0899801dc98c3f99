package etcdlock_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

// postman delivers a request late: after its caller has given up.
type postman struct {
	mu      sync.Mutex
	keeps   func(req any) bool // nil: nothing is kept
	kept    chan struct{}      // closed when a request is kept
	deliver chan struct{}
	arrived chan struct{}
	seen    int   // transactions
	result  error // of the delivery
}

// keep keeps the next request for which which is true.
func (p *postman) keep(which func(req any) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keeps, p.kept, p.deliver, p.arrived = which, make(chan struct{}), make(chan struct{}), make(chan struct{})
}

// takes reports whether a request is kept.
func (p *postman) takes(req any) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := req.(*pb.TxnRequest); ok {
		p.seen++
	}
	if p.keeps == nil || !p.keeps(req) {
		return false
	}
	p.keeps = nil
	return true
}

func (p *postman) transactions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

func (p *postman) intercept(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, send grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if !p.takes(req) {
		return send(ctx, method, req, reply, cc, opts...)
	}
	go func() {
		defer close(p.arrived)
		<-p.deliver
		late := reflect.New(reflect.TypeOf(reply).Elem()).Interface()
		p.result = send(context.WithoutCancel(ctx), method, req, late, cc)
	}()
	close(p.kept)
	<-ctx.Done()
	return ctx.Err()
}

func writes(req any) bool {
	q, ok := req.(*pb.TxnRequest)
	return ok && slices.ContainsFunc(q.GetSuccess(), func(op *pb.RequestOp) bool {
		return op.GetRequestPut() != nil || writes(op.GetRequestTxn())
	})
}

func grants(req any) bool {
	_, ok := req.(*pb.LeaseGrantRequest)
	return ok
}

// giveUp makes a call, and gives up when the postman has kept a request of that.
func (p *postman) giveUp(t *testing.T, call func(ctx context.Context) error) {
	t.Helper()
	p.giveUpAfter(t, p.kept, call)
}

func (p *postman) giveUpAfter(t *testing.T, event <-chan struct{}, call func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-event
		cancel()
	}()
	if err := call(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a call whose request was kept: expected Canceled, seen %v", err)
	}
}

// TestLateRequests delivers requests after their callers have given up. It has a member of its own, so that all leases
// of etcd are seen.
func TestLateRequests(t *testing.T) {
	t.Parallel()
	s := newStore(t, etcdtest.Start(t))
	p := new(postman)
	l := p.client(s)
	entry := func(lease locker.Lease) (of int64, modified int64) {
		t.Helper()
		resp, err := s.direct.Get(t.Context(), s.prefix+lease.Key()+"/"+lease.Token())
		s.must(err)
		if len(resp.Kvs) != 1 {
			t.Fatal("the lock has no entry")
		}
		return resp.Kvs[0].Lease, resp.Kvs[0].ModRevision
	}

	// The lock has a TTL of 60 s. An extension by 59 s comes late, and must not undo one by 60 s that came before.
	lease := lock(t, l, "k", locker.TTL(time.Minute), locker.NoRenewal())
	until(t, "a second has passed", func() bool {
		seen, err := l.Inspect(t.Context(), "k")
		s.must(err)
		return seen.Remaining <= 58*time.Second
	})
	p.keep(writes)
	p.giveUp(t, func(ctx context.Context) error { return lease.Extend(ctx, locker.TTL(59*time.Second)) })
	s.must(lease.Extend(t.Context()))
	was, modified := entry(lease)
	close(p.deliver)
	<-p.arrived
	s.must(p.result)
	if is, m := entry(lease); is != was || m != modified {
		t.Error("an extension that came late has changed the lock's entry")
	}
	s.must(lease.Extend(t.Context()))

	// While an extension is under way, another one waits for it.
	p.keep(moves)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan error)
	go func() { result <- lease.Extend(ctx) }()
	<-p.kept
	sent := p.transactions()
	brief, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer end()
	if err := lease.Extend(brief, locker.TTL(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an extension during another one: expected it to wait, seen %v", err)
	}
	if p.transactions() != sent {
		t.Error("an extension during another one has sent something")
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("expected Canceled, seen %v", err)
	}
	close(p.deliver)
	<-p.arrived

	// An acquisition comes late.
	unlock(t, lease)
	p.keep(writes)
	p.giveUp(t, func(ctx context.Context) error {
		_, err := l.Lock(ctx, "k")
		return err
	})
	s.noLeases()
	close(p.deliver)
	<-p.arrived
	if left := s.left(); len(left) > 0 {
		t.Errorf("an acquisition that came late has left %q", left)
	}
}

// client makes a Client whose requests the postman delivers.
func (p *postman) client(s *store) *locker.Client {
	s.t.Helper()
	l := etcdlock.New(connect(s.t, clientv3.Config{
		Endpoints:   []string{s.member.Addr()},
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(p.intercept)},
	}), etcdlock.Prefix(s.prefix))
	s.t.Cleanup(func() { _ = l.Close() })
	return l
}

// noLeases waits until etcd has no leases.
func (s *store) noLeases() {
	s.t.Helper()
	until(s.t, "nothing is left", func() bool {
		ctx, cancel := background()
		defer cancel()
		resp, err := s.direct.Leases(ctx)
		s.must(err)
		return len(resp.Leases) == 0
	})
}

// A lease for which nobody waits any more is ended, whether etcd has granted it before its caller gave up or grants it
// later. Each attempt asks for a day.
func TestAbandonedGrantsLeaveNoLease(t *testing.T) {
	t.Parallel()
	s := newStore(t, etcdtest.Start(t))
	p := new(postman)
	l := p.client(s)
	day := locker.TTL(24 * time.Hour)
	attempts := []func(ctx context.Context) error{
		func(ctx context.Context) error { return second(l.TryLock(ctx, "k", day)) },
		func(ctx context.Context) error { return second(l.Lock(ctx, "k", day)) },
		func(ctx context.Context) error {
			_, err := locker.TryLockAll(ctx, l, []string{"a", "b", "c"}, day)
			return err
		},
	}
	for _, attempt := range attempts {
		p.keep(grants)
		close(p.deliver) // at once, and the answer is not read
		p.giveUpAfter(t, p.arrived, attempt)
		s.noLeases() // without a clean-up that is still to come, which would confuse the next part

		p.keep(grants)
		p.giveUp(t, attempt)
		until(t, "the clean-up has come before the request", func() bool {
			ctx, cancel := background()
			defer cancel()
			resp, err := s.direct.Leases(ctx)
			s.must(err)
			return len(resp.Leases) > 0 // TryLockAll has asked for up to three
		})
		close(p.deliver)
		<-p.arrived
		s.noLeases()
	}
}

// The answer to the clean-up that takes the number of an abandoned lease is lost. The clean-up is repeated, and the
// number is taken when the request for the lease comes.
func TestAbandonedGrantAfterACleanUpThatWasNotAnswered(t *testing.T) {
	t.Parallel()
	s := newStore(t, etcdtest.Start(t))
	var requests atomic.Int32
	kept, deliver, late := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	l := etcdlock.New(connect(t, clientv3.Config{
		Endpoints: []string{s.member.Addr()},
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
			cc *grpc.ClientConn, send grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if !grants(req) {
				return send(ctx, method, req, reply, cc, opts...)
			}
			switch requests.Add(1) {
			case 1: // of the attempt
				go func() {
					<-deliver
					late <- send(context.WithoutCancel(ctx), method, req, new(pb.LeaseGrantResponse), cc)
				}()
				close(kept)
				<-ctx.Done()
				return ctx.Err()
			case 2: // of the clean-up
				_ = send(ctx, method, req, reply, cc, opts...)
				return status.Error(codes.Unavailable, "the answer is lost")
			}
			return send(ctx, method, req, reply, cc, opts...)
		})},
	}), etcdlock.Prefix(s.prefix))
	t.Cleanup(func() { _ = l.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-kept
		cancel()
	}()
	_, err := l.TryLock(ctx, "k", locker.TTL(24*time.Hour))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("TryLock: got %v", err)
	}
	until(t, "the number is taken again", func() bool {
		ctx, cancel := background()
		defer cancel()
		resp, err := s.direct.Leases(ctx)
		s.must(err)
		return requests.Load() == 3 && len(resp.Leases) == 1
	})
	close(deliver)
	if err := rpctypes.Error(<-late); !errors.Is(err, rpctypes.ErrLeaseExist) {
		t.Errorf("the late request: got %v", err)
	}
	s.noLeases()
}

// A waiter at the front moves its entry to a lease with the TTL of the lock. It gives up before etcd has answered.
func TestAbandonedHandOverLeavesNoLease(t *testing.T) {
	t.Parallel()
	s := newStore(t, etcdtest.Start(t))
	p := new(postman)
	l := p.client(s)
	held := lock(t, s.client(), "k")
	p.keep(moves)
	p.giveUp(t, func(ctx context.Context) error {
		go func() {
			until(t, "the lock is waited for", func() bool { return len(s.left()) == 2 })
			unlock(t, held)
		}()
		return second(l.Lock(ctx, "k", locker.TTL(24*time.Hour)))
	})
	s.noLeases()
	close(p.deliver)
	<-p.arrived
	if left := s.left(); len(left) > 0 {
		t.Errorf("a hand-over that came late has left %q", left)
	}
}

// moves reports whether a request moves entries to another lease.
func moves(req any) bool {
	q, ok := req.(*pb.TxnRequest)
	return ok && slices.ContainsFunc(q.GetSuccess(), func(op *pb.RequestOp) bool {
		return slices.ContainsFunc(op.GetRequestTxn().GetCompare(), func(c *pb.Compare) bool {
			return c.Target == pb.Compare_LEASE
		})
	})
}

func second(_ locker.Lease, err error) error { return err }

// A release that is not answered keeps the lock taken for a day, with another lease. The lock has one lease in the end,
// whether the request has come before the second try or comes later.
func TestAbandonedReleaseLeavesOneLease(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		s := newStore(t, etcdtest.Start(t))
		p := new(postman)
		lease := lock(t, p.client(s), "k", locker.TTL(time.Minute), locker.MinHold(24*time.Hour))
		p.keep(writes)
		if !late {
			close(p.deliver)
		}
		_ = lease.Unlock(t.Context()) // it does not wait for ever
		kept := func() bool {
			resp, err := s.direct.Get(t.Context(), s.prefix+"k/", clientv3.WithPrefix())
			s.must(err)
			return len(resp.Kvs) == 1 && string(resp.Kvs[0].Value) == "|kept"
		}
		until(t, "the lock is released", kept)
		if late {
			close(p.deliver)
		}
		<-p.arrived
		until(t, "one lease is left", func() bool {
			resp, err := s.direct.Leases(t.Context())
			s.must(err)
			return len(resp.Leases) == 1
		})
		if !kept() {
			t.Error("the lock is not taken any more")
		}
	}
}

// etcd grants a lease, and says that its database is full, as it does if the database becomes full between the look at
// the request and its execution.
func TestLastGrantOfFullDatabaseLeavesNoLease(t *testing.T) {
	t.Parallel()
	s := newStore(t, etcdtest.Start(t))
	full := func(
		ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, send grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		err := send(ctx, method, req, reply, cc, opts...)
		if grants(req) && err == nil {
			return rpctypes.ErrGRPCNoSpace
		}
		return err
	}
	l := etcdlock.New(connect(t, clientv3.Config{
		Endpoints: []string{s.member.Addr()}, DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(full)},
	}), etcdlock.Prefix(s.prefix))
	defer l.Close()
	if _, err := l.TryLock(t.Context(), "k", locker.TTL(24*time.Hour)); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("the database is full: expected ErrUnavailable, seen %v", err)
	}
	s.noLeases()
}
