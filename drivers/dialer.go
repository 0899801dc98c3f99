package drivers

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"syscall"
)

// Dialer opens the connections of one driver to the server that a [Config] describes: the standalone server, or the
// master of a Sentinel deployment. A driver that connects with a Dialer needs no client that knows sentinels. Its
// methods may be called concurrently.
//
// For a Sentinel deployment, each Dial asks all sentinels for the master, at the same time, and believes the one with
// the newest configuration. Beginning with the first Dial, the Dialer also listens to one of the sentinels. When the
// master has changed, it closes the connections to other servers. A driver whose connections are hung or cut off from
// the sentinels therefore does not keep on using the former master. The sentinels are those of the Config only.
type Dialer struct {
	cfg    Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu        sync.Mutex
	listening bool
	current   *inquiry            // unfinished; nil if there is none
	master    string              // the result of the last lookup that had one
	conns     map[net.Conn]string // with the addresses of their servers
}

// NewDialer returns a Dialer for cfg, which must not describe a Redis Cluster. It does not connect.
func NewDialer(cfg Config) *Dialer {
	d := &Dialer{cfg: cfg, conns: make(map[net.Conn]string)}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// Dial opens one connection, as [Config.Dial] does. All errors match [ErrNotSent].
func (d *Dialer) Dial(ctx context.Context) (net.Conn, error) {
	if d.cfg.Sentinel == nil {
		return d.cfg.Dial(ctx)
	}
	addr, err := d.lookUp(ctx)
	if err != nil {
		return nil, NotSent(err)
	}
	conn, err := d.cfg.At(addr).Dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.keep(conn, addr); err != nil {
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
	case d.ctx.Err() != nil:
		return ErrClosed
	case addr != d.master:
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

// follows reports whether addr is the master that the sentinels named last.
func (d *Dialer) follows(addr string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.master == addr
}

// follow takes the master that the sentinels name, and closes the connections to other servers.
func (d *Dialer) follow(addr string) {
	var former []net.Conn
	d.mu.Lock()
	d.master = addr
	for conn, of := range d.conns {
		if of != addr {
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
// to the driver. Dial then fails for a Sentinel deployment. Closing twice is harmless.
func (d *Dialer) Close() {
	d.mu.Lock()
	d.cancel()
	d.mu.Unlock()
	d.tasks.Wait()
}
