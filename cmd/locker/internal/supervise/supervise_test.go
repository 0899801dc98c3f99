//go:build unix

package supervise

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/steady"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNoStartAfterTheEndHasBegun checks that the holder does not start the command if a signal has arrived or the lease
// has ended, even if the guard is ready.
func TestNoStartAfterTheEndHasBegun(t *testing.T) {
	l, err := config.Open(t.Context(), "memory:?prefix="+t.Name())
	require.NoError(t, err)
	defer l.Close()
	for _, sig := range ending {
		lease, err := l.TryLock(t.Context(), "k")
		require.NoError(t, err)
		heard, orders := make(chan news, 2), pipe(t)
		h := &holder{opts: &Options{}, lease: lease, heard: heard, orders: orders, signals: make(chan os.Signal, 2)}
		heard <- news{Is: isReady}
		h.signals <- syscall.SIGWINCH
		h.signals <- sig
		started, err := h.startCommand()
		assert.False(t, started, sig)
		assert.Equal(t, 128+int(sig.(syscall.Signal)), exit.Of(err).Code)
		steady.Unlock(t, lease)

		heard <- news{Is: isReady}
		started, err = h.startCommand()
		assert.False(t, started, "the lease has ended")
		assert.Equal(t, exit.Lost, exit.Of(err).Code)
	}
}

// TestGuardDoesNotStartTooLate checks that the guard does not start the command if less than the grace is left. The
// holder may have been stopped between its last look at the lease and the order.
func TestGuardDoesNotStartTooLate(t *testing.T) {
	g := &guard{news: pipe(t)}
	failed := g.start(order{Do: doStart, Path: "/bin/true", Grace: time.Minute, OnLost: Term,
		KillBy: instantOf(time.Now().Add(59 * time.Second))})
	require.NotNil(t, failed)
	assert.Equal(t, exit.Lost, failed.Code)
}

// pipe returns the writing end of a pipe that nobody reads.
func pipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return w
}

// An outage is reported once a minute, and not with each attempt. What was not seen of the leader is not said to end a
// term.
func TestElectReportsAnOutageOnce(t *testing.T) {
	var out bytes.Buffer
	e := &elector{opts: &Options{
		Key:     "k",
		Note:    func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) },
		Explain: func(err error) string { return exit.Text(err) + ": run locker doctor" },
	}}
	outage := func(op string) error { return &locker.Error{Op: op, Key: "k", Err: locker.ErrUnavailable} }
	e.wrong(outage("inspect"))
	assert.Equal(t, "inspect \"k\": lock store unavailable: it is not known who leads\n", out.String())
	for range 3 {
		e.wrong(outage("lock"))
	}
	assert.Equal(t, 1, strings.Count(out.String(), "waiting to lead again\n"), out.String())
	assert.Contains(t, out.String(), "unavailable: run locker doctor: waiting", "what to do, as run says it")
	e.outage = e.outage.Add(-2 * time.Minute)
	e.wrong(outage("lock"))
	assert.Equal(t, 2, strings.Count(out.String(), "waiting to lead again\n"), "a minute later: %s", out.String())
	e.wrong(&locker.LostError{Reason: locker.LostGone})
	e.wrong(&locker.LostError{Reason: locker.LostGone})
	assert.Equal(t, 4, strings.Count(out.String(), "waiting to lead again\n"), "each lost term: %s", out.String())
}
