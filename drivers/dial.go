package drivers

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
)

// Dial opens one connection as c says: TCP or a unix socket, TLS or plain. It is what an [OpenFunc] gives its client
// to dial with, so that every driver connects alike and every failure to connect, the TLS handshake included, is known
// to have sent nothing: all errors match [ErrNotSent]. Both ctx and c.Timeout bound the whole.
//
// Clients that dial for themselves differ in just this: one ignores ctx in the TLS handshake, one bounds the
// handshake by a constant, one does not take unix sockets.
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
// somebody else configured; what [Config.Dial] reports is among it.
//
// Time-outs, closed connections and TLS alerts are not: each may have met a command already under way.
func DialFailed(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	badCertificate := errors.As(err, new(*tls.CertificateVerificationError))
	return badCertificate || errors.Is(err, ErrNotSent)
}
