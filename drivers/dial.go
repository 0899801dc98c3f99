package drivers

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
)

// Dial opens one connection as c describes: over TCP or a unix socket, with or without TLS. ctx and c.Timeout bound the
// whole call. All errors match [ErrNotSent], including those of the TLS handshake.
//
// An [OpenFunc] should make its client use Dial, so that all drivers connect in the same way. The clients' own dialling
// differs: one ignores ctx in the TLS handshake, one uses a constant time-out for the handshake, and one does not
// support unix sockets.
func (c Config) Dial(ctx context.Context) (net.Conn, error) {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	dialer := &net.Dialer{Timeout: timeout}
	var conn net.Conn
	var err error
	if c.TLS != nil {
		conn, err = (&tls.Dialer{NetDialer: dialer, Config: c.TLS}).DialContext(ctx, c.Network, c.Addr)
	} else {
		conn, err = dialer.DialContext(ctx, c.Network, c.Addr)
	}
	if err != nil {
		return nil, NotSent(err)
	}
	return conn, nil
}

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
