// Package plain is a Redis driver over net.Conn alone, in less than 200 lines: it speaks RESP, opens a connection per
// call, and keeps idle ones. It shows what a driver for a client of your own needs. Importing it registers the driver
// "plain", so that a URL can name it: redis+plain://host:6379.
//
// The driver does not implement drivers.Subscriber, so waiters poll.
package plain

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
)

func init() {
	drivers.Register("plain",
		func(_ context.Context, cfg drivers.Config) (drivers.Driver, error) { return New(cfg), nil })
}

// New makes a driver with connections of its own. It does not connect yet: if a server is down, Do reports it.
func New(cfg drivers.Config) drivers.Driver {
	cfg.Timeout = cmp.Or(cfg.Timeout, drivers.DefaultTimeout)
	return &driver{cfg: cfg}
}

type driver struct {
	cfg       drivers.Config
	lifecycle drivers.Lifecycle // handles Close, contexts that have ended, and servers that are replicas

	mu   sync.Mutex
	idle []*conn
}

// Do implements drivers.Driver. No command is ever sent twice. If an exchange fails, the caller gets the error and the
// connection is closed.
func (d *driver) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if err := d.lifecycle.Enter(ctx); err != nil {
		return nil, err
	}
	c, err := d.take(ctx)
	var refusal drivers.ServerError
	if errors.As(err, &refusal) {
		return drivers.Refused(refusal, len(cmds)), nil
	} else if err != nil {
		return nil, drivers.NotSent(err) // the handshake failed, so none of cmds was sent
	}
	replies, err := c.exchange(ctx, d.cfg.Timeout, cmds)
	c.broken = c.broken || d.lifecycle.Stale(replies) // put closes the idle connections as well
	d.put(c)
	return replies, err
}

// Close implements drivers.Driver.
func (d *driver) Close() error {
	d.lifecycle.Shut()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.idle {
		_ = c.Close()
	}
	d.idle = nil
	return nil
}

// take returns an idle connection, or a new one after its handshake.
func (d *driver) take(ctx context.Context) (*conn, error) {
	d.mu.Lock()
	if n := len(d.idle); n > 0 {
		c := d.idle[n-1]
		d.idle = d.idle[:n-1]
		d.mu.Unlock()
		return c, nil
	}
	d.mu.Unlock()
	nc, err := d.cfg.Dial(ctx) // TLS, unix sockets and timeouts as configured
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: nc, r: bufio.NewReader(nc)}
	var hello []drivers.Command
	switch {
	case d.cfg.Username != "":
		hello = append(hello, drivers.Command{"AUTH", d.cfg.Username, d.cfg.Password})
	case d.cfg.Password != "":
		hello = append(hello, drivers.Command{"AUTH", d.cfg.Password})
	}
	if d.cfg.DB != 0 {
		hello = append(hello, drivers.Command{"SELECT", strconv.Itoa(d.cfg.DB)})
	}
	replies, err := c.exchange(ctx, d.cfg.Timeout, hello)
	for _, reply := range replies {
		if refusal, ok := reply.(drivers.ServerError); ok {
			err = refusal
		}
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// put keeps a connection for the next call. After a failure it also closes the idle connections, which may be broken,
// too.
func (d *driver) put(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.broken {
		for _, other := range d.idle {
			_ = other.Close()
		}
		d.idle = nil
	}
	if c.broken || len(d.idle) >= 16 || d.lifecycle.Enter(context.Background()) != nil {
		_ = c.Close()
		return
	}
	d.idle = append(d.idle, c)
}

type conn struct {
	net.Conn
	r      *bufio.Reader
	broken bool // replies may arrive that no call waits for, or the server is a replica
}

// exchange sends cmds and reads their replies, until ctx ends or the timeout is over.
func (c *conn) exchange(ctx context.Context, timeout time.Duration, cmds []drivers.Command) (replies []drivers.Reply,
	err error) {
	_ = c.SetDeadline(time.Now().Add(timeout))
	interrupt := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(0, 0)) })
	defer func() { c.broken = !interrupt() || err != nil }()
	var out []byte
	for _, cmd := range cmds {
		out = header(out, '*', len(cmd))
		for _, arg := range cmd {
			out = append(header(out, '$', len(arg)), arg...)
			out = append(out, "\r\n"...)
		}
	}
	if _, err := c.Write(out); err != nil {
		return nil, err
	}
	for range cmds {
		reply, err := c.read(0)
		if err != nil {
			return nil, err
		}
		replies = append(replies, reply)
	}
	return replies, nil
}

func header(out []byte, kind byte, n int) []byte {
	return append(strconv.AppendInt(append(out, kind), int64(n), 10), "\r\n"...)
}

var errProtocol = errors.New("the server does not speak RESP2")

// A longer reply is an error, because its length is allocated before it is read. Replies about locks are far shorter.
const (
	maxBytes = 16 << 20
	maxItems = 1 << 10
	maxDepth = 8
)

// read reads one reply as drivers.Reply wants it.
func (c *conn) read(depth int) (drivers.Reply, error) {
	bytes, err := c.r.ReadSlice('\n') // up to the buffer's size
	if err != nil {
		return nil, err
	}
	line, ok := strings.CutSuffix(string(bytes), "\r\n")
	if !ok || line == "" || depth > maxDepth {
		return nil, errProtocol
	}
	kind, text := line[0], line[1:]
	switch kind {
	case '+':
		return text, nil
	case '-':
		return drivers.ServerError(text), nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		return nil, errProtocol
	case kind == ':':
		return n, nil
	case n == -1:
		return nil, nil // both kinds of nil
	case kind == '$' && 0 <= n && n <= maxBytes:
		bytes := make([]byte, n+2)
		if _, err := io.ReadFull(c.r, bytes); err != nil {
			return nil, err
		}
		if text, ok := strings.CutSuffix(string(bytes), "\r\n"); ok {
			return text, nil
		}
	case kind == '*' && 0 <= n && n <= maxItems:
		array := make([]drivers.Reply, n)
		for i := range array {
			if array[i], err = c.read(depth + 1); err != nil {
				return nil, err
			}
		}
		return array, nil
	}
	return nil, errProtocol
}
