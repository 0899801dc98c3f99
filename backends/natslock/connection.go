package natslock

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// jet returns the JetStream that is in use.
func (b *store) jet() jetstream.JetStream { return *b.js.Load() }

// renew makes another connection in the background, if the backend has made its connection itself. It is for one that
// is closed for good: the client library closes it when the server sends an error that the library does not know, as
// for a line that is too long.
func (b *store) renew() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dial == nil || b.closed || b.renews || !told(b, (*natsclient.Conn).IsClosed) {
		return
	}
	b.renews = true
	b.working.Go(func() {
		js, err := b.dial()
		if err == nil {
			b.js.Store(&js)
			b.bucket.Store(nil)
			b.news.move(js.Conn())
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.renews = false // after an error, the next call tries again
	})
}

// reconnect makes the connection one to the next server. It does not wait for that; see within.
func (b *store) reconnect() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.working.Go(func() { _ = b.jet().Conn().ForceReconnect() }) // an error says that the connection is closed
	}
}

// within calls f, which uses the connection, and returns when ctx ends, if not before. The client library holds a mutex
// while it connects to a server, and while it writes to one, which takes seconds if the server hangs. All its functions
// wait for that mutex, and heed no context meanwhile. f then goes on for as long as that.
func within[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
	}
	select { // an answer that has come says more than the end of the context
	case r := <-done:
		return r.value, r.err
	case <-time.After(prompt):
		var none T
		return none, ctx.Err()
	}
}

// prompt is how long to wait for what the client library knows without asking a server.
const prompt = 25 * time.Millisecond

// told returns what the connection says about itself, or the zero value if that does not come at once; see within.
func told[T any](b *store, f func(conn *natsclient.Conn) T) T {
	ctx, cancel := context.WithTimeout(context.Background(), prompt)
	defer cancel()
	value, _ := within(ctx, func() (T, error) { return f(b.jet().Conn()), nil })
	return value
}

func (b *store) isConnected() bool { return told(b, (*natsclient.Conn).IsConnected) }

// grace is how long a call waits for a connection that was lost. A client that reconnects to a server that runs needs
// less.
const grace = 500 * time.Millisecond

// connected waits until there is a connection. Without one, a request would stay in the client's buffer, and could be
// sent much later.
func (b *store) connected(ctx context.Context) error {
	if b.isConnected() {
		return nil
	}
	if b.dial == nil && told(b, (*natsclient.Conn).IsClosed) {
		return unavailable(b.closedError())
	}
	b.renew()
	over := time.NewTimer(grace)
	defer over.Stop()
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		next := time.NewTimer(pause)
		select {
		case <-next.C:
		case <-ctx.Done():
			next.Stop()
			return unavailable(fmt.Errorf("%w: %w", ctx.Err(), b.unconnected()))
		case <-over.C:
			next.Stop()
			return unavailable(b.unconnected())
		}
		if b.isConnected() {
			return nil
		}
	}
}

// reach leaves a server through which nothing is stored.
//
// A server that is cut off from the others of its cluster keeps its clients, and answers their pings. The client
// library stays with it, although other servers may have a leader. If it was the leader of the bucket, it still answers
// reads for twenty seconds, and refuses writes whose condition fails. It acknowledges no write, because that takes a
// majority. reach makes the library connect to the next server. It does so with a connection that belongs to the
// backend only.
type reach struct {
	leave func() // connects to the next server; nil: stay

	mu     sync.Mutex
	good   time.Time // when a write was acknowledged last, or the last server was left
	missed time.Time // when the first request began that was not answered since then; zero: there is none
}

// deaf is how long a server may leave requests unanswered, and store nothing. To elect a leader takes a cluster longer,
// but to connect to another server meanwhile costs little.
const deaf = 3 * time.Second

// stored is called after each write that was acknowledged.
func (r *reach) stored() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.good, r.missed = time.Now(), time.Time{}
}

// miss is called after each request that was not answered. The time since the first of them began counts, but not what
// was before the last write that was stored, or before the last server was left.
func (r *reach) miss(began time.Time) {
	if r.bad(began) {
		r.leave()
	}
}

// bad reports whether the server is to be left now.
func (r *reach) bad(began time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if began.Before(r.good) {
		began = r.good
	}
	if r.missed.IsZero() {
		r.missed = began
	}
	if r.leave == nil || time.Since(r.missed) < deaf {
		return false
	}
	r.good = time.Now()
	r.missed = r.good
	return true
}

// advised is an error with what to do about it.
type advised struct {
	err error
	fix string
}

func (a *advised) Error() string { return a.err.Error() + ": " + a.fix }
func (a *advised) Unwrap() error { return a.err }

// closedError is the error for a connection that is closed for good.
func (b *store) closedError() error {
	if err := told(b, (*natsclient.Conn).LastError); err != nil {
		return &advised{fmt.Errorf("the connection to NATS is closed for good: %w", err), remake}
	}
	return &advised{errors.New("the connection to NATS is closed for good"), remake}
}

const remake = "make another connection and another Client, with nats.MaxReconnects(-1) and " +
	"nats.IgnoreAuthErrorAbort(), so that the connection is not given up"

// unconnected is the error for a connection that was lost, or was never made.
func (b *store) unconnected() error {
	err := b.login.get()
	if err == nil {
		err = told(b, (*natsclient.Conn).LastError)
	}
	if err == nil {
		err = errNoServer
	}
	return fmt.Errorf("not connected to NATS: %w", b.explained(err))
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
func (b *store) explained(err error) error {
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
func (b *store) denied(err error) error {
	if last := told(b, (*natsclient.Conn).LastError); errors.Is(last, natsclient.ErrPermissionViolation) {
		return &advised{
			fmt.Errorf("%w (%w)", err, last),
			"grant this right to the user; docs/backends/nats.md lists those that locks need",
		}
	}
	return err
}
