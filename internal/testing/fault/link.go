package fault

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"
)

// link is one client's connection and the connection to the server that belongs to it. One goroutine carries requests,
// and another one replies.
//
// The goroutine for replies outlives the client. It continues until all forwarded requests are answered, because
// closing the connection to the server earlier could prevent a command that is still under way.
type link struct {
	p      *Proxy
	id     int
	client net.Conn
	up     net.Conn

	mu         sync.Mutex
	pending    []*exchange // forwarded and not yet answered, oldest first
	setup      []byte      // requests that a second connection must repeat to be like this one
	setups     int
	subscriber bool // a command that subscribes was sent
	ended      bool // no more requests will come
}

// exchange is a forwarded request that waits for its reply.
type exchange struct {
	verdict
	raw      []byte
	missing  int // number of frames to come; a SUBSCRIBE is confirmed once for each channel
	answered bool
}

func (l *link) serve() {
	defer l.p.drop(l.client)
	up, err := l.p.dial()
	if err != nil {
		return
	}
	l.up = up
	var replies sync.WaitGroup
	replies.Go(l.replies)
	l.requests()
	l.end()
	replies.Wait()
}

// requests carries requests until the client or an action ends the connection.
func (l *link) requests() {
	r := bufio.NewReader(l.client)
	lost := false
	for {
		raw, args, err := readRequest(r)
		if err != nil {
			l.complain(err)
			return
		}
		v := l.p.decide(l.id, args)
		if v.kind == cutBefore {
			l.p.drop(l.client)
			return
		}
		if lost = lost || v.kind == drop; lost {
			continue
		}
		if v.kind == hold && !pause(l.p, v.gate) || v.kind == pass && v.delay > 0 && !pause(l.p, time.After(v.delay)) {
			return
		}
		if l.forward(v, raw) != nil || v.kind == cutAfter {
			return
		}
	}
}

func (l *link) forward(v verdict, raw []byte) error {
	e := &exchange{verdict: v, raw: raw, missing: 1}
	if subscription(v.Name()) {
		e.missing = max(1, len(v.Args)-1)
	}
	l.mu.Lock()
	l.pending = append(l.pending, e)
	l.subscriber = l.subscriber || subscription(v.Name())
	if v.Is("HELLO", "AUTH", "SELECT") {
		l.setup = append(l.setup, raw...)
		l.setups++
	}
	l.mu.Unlock()
	return l.write(l.up, raw, v.Action)
}

// write passes bytes on, in pieces if the action says so. If the test ends, it stops with an error, like a connection
// that breaks.
func (l *link) write(to net.Conn, b []byte, a Action) error {
	if a.kind != trickle {
		_, err := to.Write(b)
		return err
	}
	for len(b) > 0 {
		n := min(len(b), 1+rand.IntN(a.most))
		if _, err := to.Write(b[:n]); err != nil {
			return err
		}
		if b = b[n:]; !pause(l.p, time.After(a.delay)) {
			return net.ErrClosed
		}
	}
	return nil
}

// end records that no more requests come. If none is pending, it wakes the goroutine for replies, which then ends.
func (l *link) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if len(l.pending) == 0 {
		_ = l.up.Close()
	}
}

// replies carries replies until the last one, and then closes both sides.
func (l *link) replies() {
	defer l.p.drop(l.up)
	defer l.p.drop(l.client)
	r := bufio.NewReader(l.up)
	lost := false
	for {
		f, err := readFrame(r)
		if err != nil {
			l.complain(err)
			return
		}
		e, last := l.match(f)
		if e != nil && !e.answered {
			e.answered = true
			if e.kind == duplicate {
				l.repeat(e)
			}
			l.p.executed(e.N)
			if e.kind == cutAfter || e.kind == holdReply && !pause(l.p, e.gate) ||
				e.kind == delayReply && !pause(l.p, time.After(e.delay)) {
				return
			}
			if e.kind == cutMid {
				_, _ = l.client.Write(f[:len(f)/2])
				return
			}
			lost = lost || e.kind == dropReply
		}
		if !lost {
			// After an error the client has left. The replies are still read, because they tell what was executed.
			var a Action
			if e != nil {
				a = e.Action
			}
			if l.write(l.client, f, a) == nil && e != nil {
				l.p.answered(e.N, f)
			}
		}
		if last {
			return
		}
	}
}

// match returns the exchange that a frame answers, or nil if it answers none. last says that no more requests come, and
// that no other reply is due.
func (l *link) match(f frame) (e *exchange, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return nil, l.ended
	}
	e = l.pending[0]
	if label := f.label(); l.subscriber && published(label) {
		// In RESP2 these frames are arrays, like replies. Confirmations look like messages, but they answer a request.
		if !subscription(label) || !e.Is(label) {
			return nil, false
		}
	} else if f.outOfBand() {
		return nil, false
	}
	if e.missing--; e.missing == 0 || f[0] == '-' {
		l.pending = l.pending[1:]
	}
	return e, l.ended && len(l.pending) == 0
}

// subscription reports whether a command, or the command that labels a frame, is confirmed by pub/sub frames instead of
// a reply.
func subscription(name string) bool {
	return strings.HasSuffix(strings.ToUpper(name), "SUBSCRIBE")
}

// published reports whether label is the label of a pub/sub frame.
func published(label string) bool {
	return subscription(label) || label == "message" || label == "pmessage" || label == "smessage"
}

// repeat executes a request a second time, on a new connection with the same HELLO, AUTH and SELECT.
func (l *link) repeat(e *exchange) {
	conn, err := l.p.dial()
	if err == nil {
		defer l.p.drop(conn)
		l.mu.Lock()
		frames, n := append(append([]byte(nil), l.setup...), e.raw...), l.setups+1
		l.mu.Unlock()
		_, err = conn.Write(frames)
		for r := bufio.NewReader(conn); err == nil && n > 0; {
			var f frame
			if f, err = readFrame(r); err == nil && !f.outOfBand() {
				n--
			}
		}
	}
	if err != nil {
		l.complain(fmt.Errorf("%w: %v: %w", errNotRepeated, e.Request, err))
	}
}

var errNotRepeated = errors.New("request was not duplicated")

// complain fails the test if err is about the protocol, so that the proxy does not know what it forwards. An error of
// the connection is no reason.
func (l *link) complain(err error) {
	select {
	case <-l.p.done:
		return
	default:
	}
	if errors.Is(err, errMalformed) || errors.Is(err, errNotRepeated) {
		l.p.tb.Errorf("fault: connection %d: %v", l.id, err)
	}
}
