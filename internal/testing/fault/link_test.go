package fault

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// discard is a server that never answers.
type discard struct{ net.Conn }

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// tape records what is written to it, packet by packet.
type tape struct {
	net.Conn
	packets []string
}

func (c *tape) Write(b []byte) (int, error) {
	c.packets = append(c.packets, string(b))
	return len(b), nil
}

func TestTricklesInPieces(t *testing.T) {
	l := &link{p: &Proxy{done: make(chan struct{})}}
	text := strings.Repeat("0123456789", 100)
	to := &tape{}
	require.NoError(t, l.write(to, []byte(text), Trickle(7, time.Microsecond)))
	assert.Equal(t, text, strings.Join(to.packets, ""))
	assert.Greater(t, len(to.packets), len(text)/7)
	for _, p := range to.packets {
		assert.LessOrEqual(t, len(p), 7)
	}
	to = &tape{}
	require.NoError(t, l.write(to, []byte(text), Pass))
	assert.Equal(t, []string{text}, to.packets)
}

// TestMatch checks which frame answers which request, also in orders that a test cannot make a real server follow.
func TestMatch(t *testing.T) {
	push := func(kind byte, label string) string {
		return string(kind) + "3\r\n$" + string('0'+byte(len(label))) + "\r\n" + label + "\r\n$1\r\na\r\n:1\r\n"
	}
	for name, c := range map[string]struct {
		pending []string // requests
		frames  []string
		want    []string // the request that each frame answers
	}{
		"replies": {[]string{"GET", "PING"}, []string{"$-1\r\n", "+PONG\r\n"}, []string{"GET", "PING"}},
		"one confirmation per channel": {
			[]string{"SUBSCRIBE a b", "PING"},
			[]string{push('*', "subscribe"), push('*', "subscribe"), "+PONG\r\n"},
			[]string{"SUBSCRIBE", "SUBSCRIBE", "PING"},
		},
		"an error is the only reply": {
			[]string{"SUBSCRIBE a b", "PING"}, []string{"-NOPERM\r\n", "+PONG\r\n"}, []string{"SUBSCRIBE", "PING"},
		},
		"message": {
			[]string{"SUBSCRIBE a", "PING"},
			[]string{push('*', "subscribe"), push('*', "message"), push('*', "pmessage"), "+PONG\r\n"},
			[]string{"SUBSCRIBE", "", "", "PING"},
		},
		"message before confirmation": {
			[]string{"PSUBSCRIBE a"}, []string{push('>', "message"), push('>', "psubscribe")},
			[]string{"", "PSUBSCRIBE"},
		},
		"push": {[]string{"GET"}, []string{push('>', "tracking"), ":1\r\n"}, []string{"", "GET"}},
		"array of a connection that never subscribed": {[]string{"EVAL"}, []string{push('*', "message")},
			[]string{"EVAL"}},
		"attribute":   {[]string{"GET"}, []string{"|1\r\n+a\r\n:1\r\n", ":1\r\n"}, []string{"", "GET"}},
		"unasked-for": {nil, []string{":1\r\n"}, []string{""}},
	} {
		l := &link{up: discard{}}
		for _, request := range c.pending {
			args := strings.Fields(request)
			_ = l.forward(verdict{Request: Request{Args: args}}, nil)
		}
		for i, f := range c.frames {
			e, _ := l.match(frame(f))
			got := ""
			if e != nil {
				got = e.Name()
			}
			assert.Equal(t, c.want[i], got, "%s: frame %d", name, i)
		}
		assert.Empty(t, l.pending, name)
	}
}
