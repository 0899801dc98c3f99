package etcdlock_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

// lookalike is a server that speaks a part of the protocol of etcd. Without number and renew, it does what kine 0.17.5
// does, by its pkg/server/lease.go and maintenance.go, and KubeBrain, too.
type lookalike struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedMaintenanceServer
	number func(asked int64) int64 // of a lease that is granted
	renew  func(s pb.Lease_LeaseKeepAliveServer) error

	revoked, transactions atomic.Int32
}

func (s *lookalike) LeaseGrant(_ context.Context, req *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	resp := &pb.LeaseGrantResponse{Header: &pb.ResponseHeader{}, ID: req.TTL, TTL: req.TTL}
	if s.number != nil {
		resp.ID = s.number(req.ID)
	}
	return resp, nil
}

func (s *lookalike) LeaseRevoke(context.Context, *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	s.revoked.Add(1)
	return nil, errors.New("lease revoke is not supported")
}

func (s *lookalike) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	if s.renew != nil {
		return s.renew(stream)
	}
	return errors.New("lease keep alive is not supported")
}

func (s *lookalike) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	s.transactions.Add(1)
	return nil, errors.New("etcdserver: unsupported operations in txn request")
}

func (s *lookalike) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Header: &pb.ResponseHeader{}, DbSize: 1, Version: "3.5.13"}, nil
}

func same(asked int64) int64 { return asked }

// serve starts a server, and returns a client of it.
func serve(t *testing.T, s *lookalike) *clientv3.Client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterKVServer(server, s)
	pb.RegisterLeaseServer(server, s)
	pb.RegisterMaintenanceServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return connect(t, clientv3.Config{Endpoints: []string{listener.Addr().String()}})
}

// refuses checks that no lock is granted, by an error that says what to do, and that nothing is written.
func refuses(t *testing.T, s *lookalike, kind error, words ...string) {
	t.Helper()
	l := etcdlock.New(serve(t, s), etcdlock.Timeout(2*time.Second))
	defer l.Close()
	for what, lock := range map[string]func() (locker.Lease, error){
		"TryLock": func() (locker.Lease, error) { return l.TryLock(t.Context(), "k") },
		"Lock":    func() (locker.Lease, error) { return l.Lock(t.Context(), "k", locker.Patience(time.Millisecond)) },
	} {
		_, err := lock()
		if !errors.Is(err, kind) {
			t.Errorf("%s: expected %v, seen %v", what, kind, err)
			continue
		}
		for _, word := range append(words, "kine") {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: expected the word %q, seen %v", what, word, err)
			}
		}
	}
	if n := s.transactions.Load(); n != 0 {
		t.Errorf("%d transactions were sent", n)
	}
}

func TestKineIsRefused(t *testing.T) {
	t.Parallel()
	s := new(lookalike)
	refuses(t, s, locker.ErrInvalid, "another number", "the addresses of an etcd")
	if n := s.revoked.Load(); n != 0 {
		t.Errorf("%d leases were revoked, and there are none", n)
	}
	l := etcdlock.New(serve(t, s))
	defer l.Close()
	(&store{t: t}).finds(examiner(t, l), "server", inspect.Fail, "3.5.13", "kine", "the addresses of an etcd")
}

// A server may answer renewals, and not look which leases there are. Then leases never end.
func TestServersThatRenewEverythingAreRefused(t *testing.T) {
	t.Parallel()
	refuses(t, &lookalike{number: same, renew: func(s pb.Lease_LeaseKeepAliveServer) error {
		for {
			req, err := s.Recv()
			if err != nil {
				return err
			}
			if err := s.Send(&pb.LeaseKeepAliveResponse{Header: &pb.ResponseHeader{}, ID: req.ID, TTL: 10}); err != nil {
				return err
			}
		}
	}}, locker.ErrInvalid, "does not exist", "the addresses of an etcd")
}

func TestServersWithoutRenewalsAreRefused(t *testing.T) {
	t.Parallel()
	refuses(t, &lookalike{number: same, renew: pb.UnimplementedLeaseServer{}.LeaseKeepAlive}, locker.ErrInvalid,
		"cannot renew", "the addresses of an etcd")
}

// These errors may be those of an etcd that fails, so they are not final.
func TestServersWhoseRenewalsFailAreRefused(t *testing.T) {
	t.Parallel()
	refuses(t, &lookalike{number: same}, locker.ErrUnavailable, "lease keep alive is not supported", "check that")
	silent := func(s pb.Lease_LeaseKeepAliveServer) error {
		<-s.Context().Done()
		return s.Context().Err()
	}
	refuses(t, &lookalike{number: same, renew: silent}, locker.ErrUnavailable, "no answer", "check that")
}

// The first lock of a Client costs one renewal of a lease that nobody has, and the others cost none. A member that
// knows no leader refuses it, and then another one is asked.
func TestServersAreAskedOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t, etcdtest.Start(t))
	var streams, asked atomic.Int32
	l := etcdlock.New(connect(t, clientv3.Config{
		Endpoints: []string{s.member.Addr()},
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(func(
			ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
			opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			if !strings.HasSuffix(method, "/LeaseKeepAlive") {
				return open(ctx, desc, cc, method, opts...)
			}
			if streams.Add(1) == 1 {
				return nil, rpctypes.ErrGRPCNoLeader
			}
			stream, err := open(ctx, desc, cc, method, opts...)
			return counted{stream, &asked}, err
		})},
	}))
	defer l.Close()
	for range 3 {
		unlock(t, lock(t, l, "k"))
	}
	if streams.Load() != 2 || asked.Load() != 1 {
		t.Errorf("expected a second stream, and one renewal, seen %d and %d", streams.Load(), asked.Load())
	}
}

// counted counts what is sent.
type counted struct {
	grpc.ClientStream
	sent *atomic.Int32
}

func (s counted) SendMsg(m any) error {
	s.sent.Add(1)
	return s.ClientStream.SendMsg(m)
}
