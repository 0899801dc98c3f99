package etcd_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/etcd"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

// postman delivers a transaction late: after its caller has given up.
type postman struct {
	mu      sync.Mutex
	keeps   func(q *pb.TxnRequest) bool // nil: nothing is kept
	kept    chan struct{}               // closed when a transaction is kept
	deliver chan struct{}
	arrived chan struct{}
	seen    int   // transactions
	result  error // of the delivery
}

// keep keeps the next transaction for which which is true.
func (p *postman) keep(which func(q *pb.TxnRequest) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keeps, p.kept, p.deliver, p.arrived = which, make(chan struct{}), make(chan struct{}), make(chan struct{})
}

// takes reports whether a request is kept.
func (p *postman) takes(req any) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	q, ok := req.(*pb.TxnRequest)
	if !ok {
		return false
	}
	p.seen++
	if p.keeps == nil || !p.keeps(q) {
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
		p.result = send(context.WithoutCancel(ctx), method, req, new(pb.TxnResponse), cc, opts...)
	}()
	close(p.kept)
	<-ctx.Done()
	return ctx.Err()
}

func writes(q *pb.TxnRequest) bool {
	return slices.ContainsFunc(q.Success, func(op *pb.RequestOp) bool { return op.GetRequestPut() != nil })
}

func reads(q *pb.TxnRequest) bool { return !writes(q) }

// giveUp makes a call, and gives up when the postman has kept a transaction of that.
func (p *postman) giveUp(t *testing.T, call func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-p.kept
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
	client := connect(t, clientv3.Config{
		Endpoints:   []string{s.member.Addr()},
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(p.intercept)},
	})
	l := etcd.New(client, etcd.Prefix(s.prefix))
	defer l.Close()
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
	p.giveUp(t, func(ctx context.Context) error { return locker.ExtendTTL(ctx, lease, 59*time.Second) })
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
	p.keep(reads)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan error)
	go func() { result <- lease.Extend(ctx) }()
	<-p.kept
	sent := p.transactions()
	brief, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer end()
	if err := locker.ExtendTTL(brief, lease, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
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
	until(t, "nothing is left", func() bool {
		resp, err := s.direct.Leases(t.Context())
		s.must(err)
		return len(resp.Leases) == 0
	})
	close(p.deliver)
	<-p.arrived
	if left := s.left(); len(left) > 0 {
		t.Errorf("an acquisition that came late has left %q", left)
	}
}
