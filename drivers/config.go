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

// Config describes how to reach one Redis deployment: a standalone server by Addr, the master that sentinels name by
// Sentinel, or a Redis Cluster by Cluster. At most one of the three is set when an [OpenFunc] is called by [Open], and
// an OpenFunc is called only with what its driver was registered for. Without any of them, the client has its own
// default.
type Config struct {
	// Network is "tcp" or "unix". [Open] uses tcp if it is empty.
	Network string

	// Addr is host:port, or the path of the socket for "unix". It is empty with Sentinel or Cluster.
	Addr string

	// Sentinel, if it is not nil, says how to find the server, which is then the master of a deployment that Redis
	// Sentinel manages. The other fields are for the master.
	Sentinel *Sentinel

	// Cluster, if it is not empty, has the addresses of some nodes of a Redis Cluster, as host:port. The client learns
	// the others from them. DB is then 0, and the other fields are for all nodes.
	Cluster []string

	// Username and Password authenticate every connection. If Password is empty, there is no authentication, and
	// Username is ignored. If only Username is empty, the default user is authenticated. If the default user has no
	// password on the server, every Password is accepted.
	Username, Password string

	// Credentials, if it is not nil, is called for every new connection and returns the user and the password for it,
	// with the same rules. [Open] then ignores Username and Password. It is for passwords that change, and for tokens
	// that expire. It must return when ctx ends, which is after Timeout at the latest. If it returns an error, the
	// connection is not made, and the driver's error matches that error and [ErrNotSent]. It is called concurrently.
	// Connections that are open already keep their user.
	Credentials func(ctx context.Context) (username, password string, err error)

	// DB is selected on every connection. 0 is the server's default.
	DB int

	// TLS, if it is not nil, is used to encrypt every connection. The driver does not modify it.
	TLS *tls.Config

	// GetTLS, if it is not nil, is called by [Config.Dial] for every new connection and returns the configuration to use
	// instead of TLS. It is for certificates that are renewed. It is called concurrently, and what it returns is not
	// modified. TLS must be set, too: without it, connections are not encrypted, and a driver that does not use Dial knows
	// only TLS.
	GetTLS func() *tls.Config

	// Timeout bounds dialling, and also each exchange on a connection whose context has no earlier deadline. 0 means
	// [DefaultTimeout].
	Timeout time.Duration
}

// DefaultTimeout is used if [Config.Timeout] is 0.
const DefaultTimeout = 5 * time.Second

// Sentinel says how to find the master of a deployment whose failovers are managed by Redis Sentinel.
type Sentinel struct {
	// Master is the name under which the sentinels know the deployment. It must not be empty.
	Master string

	// Addrs are the addresses of sentinels, as host:port. At least one is needed. A [Dialer] asks all of them at the
	// same time.
	Addrs []string

	// Username and Password authenticate the connections to the sentinels. They follow the rules of those of [Config].
	Username, Password string

	// Credentials, if it is not nil, is called for every new connection to a sentinel, as that of [Config] is.
	Credentials func(ctx context.Context) (username, password string, err error)

	// TLS, if it is not nil, is used to encrypt the connections to the sentinels. The driver does not modify it. GetTLS
	// replaces it for each connection, as that of [Config] does.
	TLS    *tls.Config
	GetTLS func() *tls.Config
}

// Topology is the kind of a deployment that a [Config] can describe.
type Topology int

// The kinds of deployments. Each driver reaches a Standalone server.
const (
	Standalone     Topology = iota // one server, at Addr
	SentinelMaster                 // the master that sentinels name
	RedisCluster                   // the masters of a Redis Cluster
)

// String returns a noun for messages, in the plural.
func (t Topology) String() string {
	switch t {
	case SentinelMaster:
		return "Sentinel deployments"
	case RedisCluster:
		return "clusters"
	}
	return "standalone servers"
}

// Topology returns what kind of deployment c describes.
func (c Config) Topology() Topology {
	switch {
	case c.Sentinel != nil:
		return SentinelMaster
	case len(c.Cluster) > 0:
		return RedisCluster
	}
	return Standalone
}

// At returns c for the standalone server at addr, for example a master that a sentinel has named, or one of the nodes
// of a cluster. Credentials and TLS are those of c.
func (c Config) At(addr string) Config {
	c.Network, c.Addr, c.Sentinel, c.Cluster = "tcp", addr, nil, nil
	return c
}

// atSentinel returns a Config for the sentinel at addr, with the credentials and the TLS of c.Sentinel, which must not
// be nil.
func (c Config) atSentinel(addr string) Config {
	s := c.Sentinel
	c = c.At(addr)
	c.Username, c.Password, c.Credentials, c.DB = s.Username, s.Password, s.Credentials, 0
	c.TLS, c.GetTLS = s.TLS, s.GetTLS
	return c
}

// validate returns an error if c describes no deployment, or more than one.
func (c Config) validate() error {
	switch {
	case c.Sentinel != nil && len(c.Cluster) > 0:
		return errors.New("a deployment is found by sentinels or by nodes of a cluster, not by both")
	case c.Topology() != Standalone && c.Addr != "":
		return errors.New("an address of one server, beside sentinels or nodes of a cluster: remove one of them")
	case c.Sentinel != nil && (c.Sentinel.Master == "" || len(c.Sentinel.Addrs) == 0):
		return errors.New("the name of the master and the address of a sentinel are needed")
	case len(c.Cluster) > 0 && c.DB != 0:
		return errors.New("a cluster has only database 0")
	case c.GetTLS != nil && c.TLS == nil || c.Sentinel != nil && c.Sentinel.GetTLS != nil && c.Sentinel.TLS == nil:
		return errors.New("there is a GetTLS and no TLS, which drivers that do not know GetTLS need")
	}
	return nil
}

// Dial opens one connection to the server at c.Addr, as c describes it: over TCP or a unix socket, with or without TLS.
// ctx and c.Timeout bound the whole call. All errors match [ErrNotSent], including those of the TLS handshake.
//
// An [OpenFunc] should make its client use Dial, so that all drivers connect in the same way. The clients' own dialling
// differs: one ignores ctx in the TLS handshake, one uses a constant time-out for the handshake, and one does not
// support unix sockets. For Sentinel deployments there is [Dialer]; for the nodes of a cluster, there is [Config.At].
func (c Config) Dial(ctx context.Context) (net.Conn, error) {
	encryption := c.TLS
	if encryption != nil && c.GetTLS != nil {
		encryption = c.GetTLS()
	}
	dialer := &net.Dialer{Timeout: c.timeout()}
	end := time.Now().Add(dialer.Timeout)
	conn, err := dialer.DialContext(ctx, c.Network, c.Addr)
	if err == nil && encryption != nil {
		conn, err = c.encrypt(ctx, conn, encryption, min(time.Until(end), dialer.Timeout*3/4))
	}
	if err != nil {
		return nil, NotSent(err)
	}
	return conn, nil
}

// encrypt does the TLS handshake. A server that does not speak TLS on its port may wait for more for ever. So the
// limit is shorter than the time of a call, whose error would not say what is wrong.
func (c Config) encrypt(
	ctx context.Context, conn net.Conn, config *tls.Config, limit time.Duration,
) (net.Conn, error) {
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName = c.Addr // of a unix socket
		if host, _, err := net.SplitHostPort(c.Addr); err == nil {
			config.ServerName = host
		}
	}
	handshake, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	encrypted := tls.Client(conn, config)
	err := encrypted.HandshakeContext(handshake)
	if err == nil {
		return encrypted, nil
	}
	_ = conn.Close()
	if handshake.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer to the TLS handshake within %v: does the server speak TLS on this port?",
			limit.Round(time.Millisecond))
	}
	return nil, err
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
