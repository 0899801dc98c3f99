package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// maxRefusals is how often a request may be refused by members that do not reach a majority. The members are asked in
// turn for the requests of all callers, so the same one may be asked several times. While the connections to the others
// are being made, it is asked every time. So the pauses between the requests grow, to half a second in all.
const maxRefusals = 10

// conn is the connection of a client to the members. A member that knows no leader refuses a request at once, instead
// of keeping it until the request times out. It has not executed it, so another member is asked.
type conn struct{ grpc.ClientConnInterface }

func (c conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	ctx = clientv3.WithRequireLeader(ctx)
	for n := 1; ; n++ {
		err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
		if n == maxRefusals || !errors.Is(rpctypes.Error(err), rpctypes.ErrNoLeader) {
			return err
		}
		select {
		case <-time.After(time.Duration(n) * 10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}
