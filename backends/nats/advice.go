package nats

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// advised is an error with what to do about it.
type advised struct {
	err error
	fix string
}

func (a *advised) Error() string { return a.err.Error() + ": " + a.fix }
func (a *advised) Unwrap() error { return a.err }

// closedError is the error for a connection that is closed for good.
func (b *Backend) closedError() error {
	if err := b.jet().Conn().LastError(); err != nil {
		return &advised{fmt.Errorf("the connection to NATS is closed for good: %w", err), remake}
	}
	return &advised{errors.New("the connection to NATS is closed for good"), remake}
}

const remake = "make another connection and another Client, with nats.MaxReconnects(-1) and " +
	"nats.IgnoreAuthErrorAbort(), so that the connection is not given up"

// unconnected is the error for a connection that was lost, or was never made.
func (b *Backend) unconnected() error {
	conn := b.jet().Conn()
	err := b.login.get()
	if err == nil {
		err = conn.LastError()
	}
	if err == nil {
		err = errNoServer
	}
	return fmt.Errorf("not connected to NATS (%v): %w", conn.Status(), b.explained(err))
}

var errNoServer = errors.New("no server answers")

// The codes of refusals by JetStream that need somebody to do something.
const (
	noResources jetstream.ErrorCode = 10023
	notEnabled  jetstream.ErrorCode = 10076
	notForUser  jetstream.ErrorCode = 10039
	notReplicas jetstream.ErrorCode = 10074
	noStorage   jetstream.ErrorCode = 10047
	noMemory    jetstream.ErrorCode = 10028
	manyStreams jetstream.ErrorCode = 10027
	noPeers     jetstream.ErrorCode = 10005
)

// explained adds to an error of the client library what to do about it, if that is known.
func (b *Backend) explained(err error) error {
	fix := ""
	var refused jetstream.JetStreamError
	switch {
	case errors.Is(err, errNoServer) || errors.Is(err, natsclient.ErrNoServers) || errors.As(err, new(*net.OpError)):
		fix = "see whether nats-server runs and can be reached at the addresses that were given"
	case errors.As(err, new(*net.DNSError)):
		fix = "correct the host name, or mend the DNS"
	case errors.Is(err, natsclient.ErrAuthorization):
		fix = "correct the user and the password, or the credentials file, or let this user in on the server"
	case errors.Is(err, natsclient.ErrAuthExpired) || errors.Is(err, natsclient.ErrAuthRevoked) ||
		errors.Is(err, natsclient.ErrAccountAuthExpired):
		fix = "issue new credentials for this user, into the same file"
	case errors.Is(err, natsclient.ErrSecureConnRequired):
		fix = "the server wants TLS: write natss:// instead of nats://"
	case errors.Is(err, natsclient.ErrSecureConnWanted):
		fix = "the server has no TLS: write nats:// instead of natss://, or set up TLS on the server"
	case errors.As(err, new(x509.UnknownAuthorityError)):
		fix = "give the certificate of the authority that has signed the server's as tls_ca_file"
	case errors.As(err, new(x509.HostnameError)):
		fix = "give the name in the server's certificate as the host, or as tls_server_name"
	case errors.Is(err, context.DeadlineExceeded):
		return b.denied(err)
	case errors.Is(err, natsclient.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled):
		fix = "switch JetStream on, with a section jetstream in the configuration of the server, or give the domain in " +
			"which it is; in a cluster, see whether a majority of the servers runs"
	case errors.As(err, &refused) && refused.APIError() != nil:
		switch refused.APIError().ErrorCode {
		case notEnabled, notForUser:
			fix = "switch JetStream on for the account of this user, with jetstream: enabled in the configuration of the server"
		case notReplicas, noPeers:
			fix = fmt.Sprintf("the bucket is to have %d replicas: use a cluster with as many servers, or set replicas to 1",
				b.replicas)
		case noResources, noStorage, noMemory, manyStreams:
			fix = "raise the limits of JetStream for this account or server, or make room"
		}
	}
	if fix == "" {
		return err
	}
	return &advised{err, fix}
}

// denied explains a request that was not answered. The server does not answer requests for which the user has no right.
// It tells the connection of it, and the client library keeps the last such error, which names the subject.
func (b *Backend) denied(err error) error {
	if last := b.jet().Conn().LastError(); errors.Is(last, natsclient.ErrPermissionViolation) {
		return &advised{
			fmt.Errorf("%w (%w)", err, last),
			"grant this right to the user; docs/backends/nats.md lists those that locks need",
		}
	}
	return err
}
