package sentinel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// connection is a connection to a sentinel. It speaks as much of the protocol as sentinels do.
type connection struct {
	conn    net.Conn
	refusal func(text string) Refusal // makes the reply of a refusal
	r       *bufio.Reader
	stop    func() bool
}

// newConnection returns a connection that is broken off when ctx ends.
func newConnection(ctx context.Context, conn net.Conn, refusal func(text string) Refusal) *connection {
	return &connection{conn, refusal, bufio.NewReader(conn), context.AfterFunc(ctx, func() { _ = conn.Close() })}
}

// outlives makes ctx bound the connection instead of the context of newConnection. It returns false if that has ended.
func (e *connection) outlives(ctx context.Context) bool {
	if !e.stop() {
		return false
	}
	e.stop = context.AfterFunc(ctx, func() { _ = e.conn.Close() })
	return true
}

func (e *connection) close() {
	e.stop()
	_ = e.conn.Close()
}

// call sends cmds and returns their replies.
func (e *connection) call(cmds ...[]string) ([]any, error) {
	if err := e.send(cmds...); err != nil {
		return nil, err
	}
	replies := make([]any, len(cmds))
	for i := range replies {
		var err error
		if replies[i], err = e.reply(0); err != nil {
			return nil, err
		}
	}
	return replies, nil
}

func (e *connection) send(cmds ...[]string) error {
	var text strings.Builder
	for _, cmd := range cmds {
		fmt.Fprintf(&text, "*%d\r\n", len(cmd))
		for _, word := range cmd {
			fmt.Fprintf(&text, "$%d\r\n%s\r\n", len(word), word)
		}
	}
	_, err := io.WriteString(e.conn, text.String())
	return err
}

// receive waits for a reply until nothing has arrived for limit. After that time-out, it can be called again.
func (e *connection) receive(limit time.Duration) (any, error) {
	if err := e.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	if _, err := e.r.Peek(1); err != nil {
		return nil, err
	}
	if err := e.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	reply, err := e.reply(0)
	if err != nil {
		return nil, fmt.Errorf("in the middle of a reply: %s", err.Error()) // cannot go on, not even after a time-out
	}
	return reply, nil
}

// Limits of what sentinels send. A server of another protocol must not make this process allocate much.
const (
	maxReply = 1 << 16
	maxDepth = 4
)

var errProtocol = errors.New("not an answer of a Redis Sentinel")

func (e *connection) reply(depth int) (any, error) {
	line, err := e.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	text := strings.TrimRight(string(line), "\r\n")
	if text == "" || depth > maxDepth {
		return nil, errProtocol
	}
	kind, text := text[0], text[1:]
	switch kind {
	case '+':
		return text, nil
	case '-':
		return e.refusal(text), nil
	case ':', '$', '*':
	default:
		return nil, errProtocol
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || kind != ':' && n > maxReply:
		return nil, errProtocol
	case kind == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case kind == '$':
		data := make([]byte, n+2)
		if _, err := io.ReadFull(e.r, data); err != nil {
			return nil, err
		}
		return string(data[:n]), nil
	}
	replies := make([]any, n)
	for i := range replies {
		if replies[i], err = e.reply(depth + 1); err != nil {
			return nil, err
		}
	}
	return replies, nil
}
