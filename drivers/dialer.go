package drivers

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"syscall"

	"github.com/golocker/locker/drivers/internal/sentinel"
)

// Dialer opens the connections of one driver to the server that a [Config] describes: the standalone server, or the
// master of a Sentinel deployment. A driver that connects with a Dialer needs no client that knows sentinels. Its
// methods may be called concurrently.
//
// For a Sentinel deployment, each Dial asks all sentinels for the master, at the same time, and believes the one with
// the newest configuration. Beginning with the first Dial, the Dialer also listens to one of the sentinels. When the
// master has changed, it closes the connections to other servers. A driver whose connections are hung or cut off from
// the sentinels therefore does not keep on using the former master. The sentinels are those of the Config only.
//
// A driver whose connections are stale calls [Dialer.Leave]; see [Lifecycle.Stale].
type Dialer struct {
	cfg      Config
	follower *sentinel.Follower // nil without sentinels

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]string // with the addresses of their servers
}

// NewDialer returns a Dialer for cfg, which must not describe a Redis Cluster. It does not connect.
func NewDialer(cfg Config) *Dialer {
	d := &Dialer{cfg: cfg, conns: make(map[net.Conn]string)}
	if cfg.Sentinel != nil {
		d.follower = sentinel.New(sentinel.Config{
			Master:  cfg.Sentinel.Master,
			Addrs:   cfg.Sentinel.Addrs,
			Timeout: cfg.timeout(),
			Dial:    func(ctx context.Context, addr string) (net.Conn, error) { return cfg.atSentinel(addr).Dial(ctx) },
			Login:   func(ctx context.Context) (string, string, error) { return cfg.atSentinel("").Login(ctx) },
			Refusal: func(text string) sentinel.Refusal { return ServerError(text) },
			Moved:   func() { d.leave(func(of string) bool { return of != d.follower.Master() }) },
		})
	}
	return d
}

// Dial opens one connection, as [Config.Dial] does. All errors match [ErrNotSent].
func (d *Dialer) Dial(ctx context.Context) (net.Conn, error) {
	cfg := d.cfg
	if d.follower != nil {
		addr, err := d.follower.LookUp(ctx)
		if err != nil {
			return nil, NotSent(err)
		}
		cfg = cfg.At(addr)
	}
	conn, err := cfg.Dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.keep(conn, cfg.Addr); err != nil {
		_ = conn.Close()
		return nil, NotSent(err)
	}
	return conn, nil
}

var errSwitched = errors.New("the sentinels have named another master meanwhile")

// keep remembers a new connection, and forgets those that are closed.
func (d *Dialer) keep(conn net.Conn, addr string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return ErrClosed
	case d.follower != nil && addr != d.follower.Master():
		return errSwitched
	}
	for c := range d.conns {
		if closed(c) {
			delete(d.conns, c)
		}
	}
	d.conns[conn] = addr
	return nil
}

// closed reports whether conn was closed by this process.
func closed(conn net.Conn) bool {
	if c, ok := conn.(*tls.Conn); ok {
		conn = c.NetConn()
	}
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	return err != nil || raw.Control(func(uintptr) {}) != nil
}

// Leave closes all connections that Dial has opened, for commands and for messages. Calls that are in
// flight fail, and their outcome is unknown.
func (d *Dialer) Leave() { d.leave(func(string) bool { return true }) }

// leave closes the connections to the servers whose addresses match. It calls match while it holds d.mu.
func (d *Dialer) leave(match func(addr string) bool) {
	var former []net.Conn
	d.mu.Lock()
	for conn, of := range d.conns {
		if match(of) {
			former = append(former, conn)
			delete(d.conns, conn)
		}
	}
	d.mu.Unlock()
	for _, conn := range former {
		if c, ok := conn.(*tls.Conn); ok {
			conn = c.NetConn() // Close of a tls.Conn would first write to the server, which may hang
		}
		_ = conn.Close()
	}
}

// Close stops following the master, and returns when that is done. It leaves the connections open, because they belong
// to the driver. Dial then fails. Closing twice is harmless.
func (d *Dialer) Close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	if d.follower != nil {
		d.follower.Close(ErrClosed)
	}
}
