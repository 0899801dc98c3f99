package etcd

import (
	"context"
	"errors"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/golocker/locker/config"
)

// logins gives the requests of a client that a configuration opens the token of its user. The client of etcd would log
// in with one password for ever, and could not be made while no member is reached.
type logins struct {
	credentials config.Credentials
	client      pb.AuthClient
	slot        chan struct{} // has a value while a login is in progress
	token       atomic.Pointer[string]
}

func newLogins(c config.Credentials) *logins {
	return &logins{credentials: c, slot: make(chan struct{}, 1)}
}

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

// renew logs in, unless another caller has replaced the token used meanwhile.
func (l *logins) renew(ctx context.Context, used *string) error {
	select {
	case l.slot <- struct{}{}:
		defer func() { <-l.slot }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if l.token.Load() != used {
		return nil
	}
	user, password, err := l.credentials(ctx)
	if err != nil {
		return err
	}
	token := new(string)
	if user != "" {
		resp, err := l.client.Authenticate(ctx, &pb.AuthenticateRequest{Name: user, Password: password})
		switch {
		case err == nil:
			*token = resp.Token
		case !errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled):
			return err
		}
	}
	l.token.Store(token)
	return nil
}

// stale reports whether a request was refused because of its token. It was not executed.
func stale(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) ||
		errors.Is(err, rpctypes.ErrUserEmpty)
}
