package cli

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/redistest"
)

// If the server dies while run waits for a lock, the error is about the server. It does not say to try again later.
func TestWaitingOnAServerThatDies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	url := "redis://" + s.Addr()
	heldBy(t, url, "k")
	p := run(t, url, "run", "-k", "k", "--wait", "6s", "--", "true")
	eventually(t, "it waits", func() bool { return s.Cmd(t, "ZCARD", "{lock:k}:lockqueue") == int64(1) })
	s.Kill()
	p.exits(t, exit.Unavailable)
	assert.NotContains(t, p.err.String(), "try again later")
}

// A store accepts connections and never answers, as a process that is stopped. The command ends soon, whatever the
// store: it asks once, and does not wait as long again for Close and for the diagnosis.
func TestASilentStoreIsBounded(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() }) // nobody accepts: the kernel does
	addr := l.Addr().String()
	for _, url := range []string{
		"redis://" + addr, "redlock://" + addr, "nats://" + addr, "etcd://" + addr, "etcd://u:p@" + addr,
		"postgres://u@" + addr + "/db",
	} {
		t.Run(url[:strings.Index(url, ":")], func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			run(t, url, "inspect", "k").exits(t, exit.Unavailable)
			assert.Less(t, time.Since(start), 2*askTimeout+closeLimit)
		})
	}
}

// Close may wait for a server without end: the command ends all the same.
func TestCloseDoesNotDelayTheEnd(t *testing.T) {
	t.Parallel()
	released, closed := make(chan struct{}), make(chan struct{})
	a := &app{stdin: strings.NewReader(""), stdout: new(bytes.Buffer), stderr: new(bytes.Buffer)}
	a.opened = []io.Closer{closer(func() {
		<-released
		close(closed)
	})}
	ended := make(chan int, 1)
	go func() { ended <- a.main(t.Context(), []string{"version"}) }()
	select {
	case code := <-ended:
		assert.Zero(t, code)
	case <-time.After(limit):
		assert.Fail(t, "it waits for Close")
	}
	close(released)
	<-closed
}

type closer func()

func (c closer) Close() error {
	c()
	return nil
}

// A timeout of the configuration is not changed, and a backend without one stays as it is.
func TestHurry(t *testing.T) {
	for url, want := range map[string]string{
		"redis://h":               "redis://h:6379?timeout=3s",
		"redlock://a,b,c?ttl=5s":  "redlock://a:6379,b:6379,c:6379?timeout=3s&ttl=5s",
		"nats://h?timeout=8s":     "nats://h?timeout=8s",
		"etcd://u:p@h":            "etcd://u:[REDACTED]@h?timeout=3s",
		"postgres://h/timeout":    "postgres://h/timeout?timeout=3s",
		"memory:":                 "memory:",
		"redis://h?prefix=a?b%26": "redis://h:6379?prefix=a%3Fb%26&timeout=3s",
	} {
		c, err := config.Parse(url)
		require.NoError(t, err)
		hurry(c)
		assert.Equal(t, want, c.String())
	}
}

func TestNotesNameTheProgramOnce(t *testing.T) {
	var out bytes.Buffer
	a := &app{stderr: &out}
	a.note("%v: it ends by itself", &locker.Error{Op: "unlock", Key: "k", Err: locker.ErrUnavailable})
	assert.Equal(t, "locker: unlock \"k\": lock store unavailable: it ends by itself\n", out.String())
}
