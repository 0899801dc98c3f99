package drivers

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// Dial opens one connection to the server at c.Addr, as c describes it: over TCP or a unix socket, with or without TLS.
// ctx and c.Timeout bound the whole call. All errors match [ErrNotSent], including those of the TLS handshake.
//
// An [OpenFunc] should make its client use Dial, so that all drivers connect in the same way. The clients' own dialling
// differs: one ignores ctx in the TLS handshake, one uses a constant time-out for the handshake, and one does not
// support unix sockets. For Sentinel deployments there is [Dialer]; for the nodes of a cluster, there is [Config.At].
func (c Config) Dial(ctx context.Context) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: c.timeout()}
	var conn net.Conn
	var err error
	encryption := c.TLS
	if encryption != nil && c.GetTLS != nil {
		encryption = c.GetTLS()
	}
	if encryption != nil {
		conn, err = (&tls.Dialer{NetDialer: dialer, Config: encryption}).DialContext(ctx, c.Network, c.Addr)
	} else {
		conn, err = dialer.DialContext(ctx, c.Network, c.Addr)
	}
	if err != nil {
		return nil, NotSent(err)
	}
	return conn, nil
}

// Login returns the user and the password for one new connection: those of c.Credentials, if that is not nil, or else
// c.Username and c.Password. Both are empty if there is no password. ctx and c.Timeout bound the call. All errors match
// [ErrNotSent].
func (c Config) Login(ctx context.Context) (username, password string, err error) {
	username, password = c.Username, c.Password
	if c.Credentials != nil {
		ctx, cancel := context.WithTimeout(ctx, c.timeout())
		defer cancel()
		if username, password, err = c.Credentials(ctx); err != nil {
			return "", "", NotSent(fmt.Errorf("no credentials: %w", err))
		}
	}
	if password == "" {
		username = "" // clients treat a user without a password differently
	}
	return username, password, nil
}

func (c Config) timeout() time.Duration { return cmp.Or(c.Timeout, DefaultTimeout) }

// DialFailed reports whether err can only come from connecting, so that no command was sent. It is for clients that
// were configured by the application. It also returns true for the errors of [Config.Dial].
//
// It returns false for time-outs, closed connections and TLS alerts, because these also occur after a command was sent.
func DialFailed(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	badCertificate := errors.As(err, new(*tls.CertificateVerificationError))
	return badCertificate || errors.Is(err, ErrNotSent)
}
