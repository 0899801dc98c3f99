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
type conn struct {
	grpc.ClientConnInterface
	logins      *logins      // nil: the client logs in by itself
	connections *connections // nil: they are not known
}

func (c conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := c.invoke(clientv3.WithRequireLeader(ctx), method, args, reply, opts)
	if ctx.Err() != nil {
		c.connections.suspect()
	}
	return err
}

func (c conn) invoke(ctx context.Context, method string, args, reply any, opts []grpc.CallOption) error {
	if err := c.logins.begin(ctx); err != nil {
		return err
	}
	for n, again := 1, false; ; n++ {
		token := c.logins.current()
		err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
		switch {
		case n == maxRefusals:
			return err
		case c.logins != nil && stale(err) && !again:
			again = true
			if err := c.logins.renew(ctx, token); err != nil {
				return err
			}
			continue
		case !errors.Is(rpctypes.Error(err), rpctypes.ErrNoLeader):
			return err
		}
		select {
		case <-time.After(time.Duration(n) * 10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// NewStream logs in anew, as the client of etcd does: a stream goes on with its first token, which may be about to end.
func (c conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (
	grpc.ClientStream, error,
) {
	if c.logins != nil {
		if err := c.logins.renew(ctx, c.logins.current()); err != nil {
			return nil, err
		}
	}
	return c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
}
