package etcdlock

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

// logins gives the requests of a client that a configuration opens the token of its user. The client of etcd would log
// in with one password for ever, and could not be made while no member is reached.
//
// A login has a goroutine of its own, because the program's function for credentials may not heed its context. It goes
// on when the callers have given up, so that a later caller has the token.
type logins struct {
	credentials config.Credentials
	open        context.Context // ends with the backend
	client      pb.AuthClient
	token       atomic.Pointer[string]
	tasks       sync.WaitGroup

	mu   sync.Mutex
	next *login // in progress; nil: none is
}

// login is one attempt to log in. err is set when done is closed.
type login struct {
	done chan struct{}
	err  error
}

func newLogins(c config.Credentials) *logins { return &logins{credentials: c} }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (l *logins) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if t := l.token.Load(); t != nil && *t != "" {
		return map[string]string{rpctypes.TokenFieldNameGRPC: *t}, nil
	}
	return nil, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (l *logins) RequireTransportSecurity() bool { return false }

// current returns the token, or nil before the first login. A nil receiver has none, and needs none.
func (l *logins) current() *string {
	if l == nil {
		return nil
	}
	return l.token.Load()
}

// begin logs in unless that was done.
func (l *logins) begin(ctx context.Context) error {
	if l == nil || l.token.Load() != nil {
		return nil
	}
	return l.renew(ctx, nil)
}

// renew logs in, unless another caller has replaced the token used meanwhile. Callers share one login.
func (l *logins) renew(ctx context.Context, used *string) error {
	l.mu.Lock()
	if l.token.Load() != used {
		l.mu.Unlock()
		return nil
	}
	n := l.next
	if n == nil && l.open.Err() != nil {
		l.mu.Unlock()
		return locker.ErrClosed
	}
	if n == nil {
		n = &login{done: make(chan struct{})}
		l.next = n
		l.tasks.Go(func() { l.run(n) })
	}
	l.mu.Unlock()
	select {
	case <-n.done:
		return n.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *logins) run(n *login) {
	ctx, cancel := context.WithTimeout(l.open, DefaultTimeout)
	defer cancel()
	token, err := l.ask(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.token.Store(&token)
	}
	n.err, l.next = err, nil
	close(n.done)
}

// ask logs in. The token is empty if there is no user, or if etcd asks for none.
func (l *logins) ask(ctx context.Context) (token string, err error) {
	user, password, err := l.credentials(ctx)
	if err != nil || user == "" {
		return "", err
	}
	resp, err := l.client.Authenticate(ctx, &pb.AuthenticateRequest{Name: user, Password: password})
	if err != nil {
		if errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled) {
			err = nil
		}
		return "", err
	}
	return resp.Token, nil
}

// wait returns when no login is in progress. It is called after the end of open. A nil receiver does nothing.
func (l *logins) wait() {
	if l == nil {
		return
	}
	l.mu.Lock()   // renew may be about to begin one
	l.mu.Unlock() //nolint:staticcheck // the section is empty on purpose
	l.tasks.Wait()
}

// stale reports whether a request was refused because of its token. It was not executed.
func stale(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) ||
		errors.Is(err, rpctypes.ErrUserEmpty)
}

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
	// A group may have more than the four megabytes that gRPC takes otherwise.
	opts = append(opts, grpc.MaxCallRecvMsgSize(math.MaxInt32))
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
