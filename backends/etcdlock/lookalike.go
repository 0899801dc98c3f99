package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/golocker/locker"
)

// Servers that speak the protocol of etcd for Kubernetes, such as kine and KubeBrain, grant leases and keep none: a
// lease is a number of seconds, which cannot be renewed or revoked. Locks would end while they are held, or never. Two
// answers tell them from etcd:
//
//   - A lease that was granted has the number that was asked for. kine 0.17.5 answers with the TTL.
//   - A renewal of a lease that does not exist is answered, with no time left. Who answers it with a TTL does not know
//     which leases there are.
//
// The first is seen in every grant. The second costs a round trip, once for each Client. Their version says nothing:
// kine claims one of etcd.

// lookalike is the error of a server that is not etcd. To try again does not help.
func lookalike(shows string) error {
	return fmt.Errorf("%w: this is not etcd, but a server that speaks its protocol and keeps no leases, such as kine: "+
		"%s; give the addresses of an etcd, or take another store", locker.ErrInvalid, shows)
}

// identity is what is known of the servers.
type identity struct {
	leases pb.LeaseClient // without conn, whose streams log in anew
	etcd   atomic.Bool    // they keep leases
	asking chan struct{}  // has a value while somebody asks
}

// renewNobody renews a lease that does not exist. The stream ends with that: of the one of renewals, the first token
// may have ended when it is needed.
func (i *identity) renewNobody(ctx context.Context) (left int64, err error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	stream, err := i.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return 0, err
	}
	id := rand.Int64N(math.MaxInt64) + 1               // a number that no lease has
	_ = stream.Send(&pb.LeaseKeepAliveRequest{ID: id}) // Recv says why this failed
	resp, err := stream.Recv()
	switch {
	case err != nil:
		return 0, err
	case resp.ID != id:
		return 0, errors.New("etcd: the answer to a renewal is about another lease")
	}
	return resp.TTL, nil
}

// keepsLeases returns an error unless the servers know which leases there are. It asks once. A failure is no proof, so
// the next call asks again.
func (b *store) keepsLeases(ctx context.Context) error {
	if b.identity.etcd.Load() {
		return nil
	}
	select {
	case b.identity.asking <- struct{}{}:
		defer func() { <-b.identity.asking }()
	case <-ctx.Done():
		return unavailable(ctx, ctx.Err())
	}
	for n := 1; !b.identity.etcd.Load(); n++ {
		left, err := b.identity.renewNobody(ctx)
		switch {
		case err == nil && left > 0:
			return lookalike("it has renewed a lease that does not exist")
		case err == nil:
			b.identity.etcd.Store(true)
			return nil
		case status.Code(err) == codes.Unimplemented:
			return lookalike("it cannot renew a lease")
		case n == maxRefusals || ctx.Err() != nil:
			why := unavailable(ctx, err)
			if status.Code(err) == codes.Unavailable || errors.Is(why, locker.ErrClosed) {
				return why
			}
			return fmt.Errorf("%w: a lease was granted, and renewals fail: check that this is etcd, and not a server that "+
				"speaks its protocol, such as kine", why)
		}
		select { // a member may know no leader, and the next stream is to another one; see conn
		case <-time.After(time.Duration(n) * 10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}

// isLookalike reports whether an error is that of lookalike.
func isLookalike(err error) bool { return errors.Is(err, locker.ErrInvalid) }
