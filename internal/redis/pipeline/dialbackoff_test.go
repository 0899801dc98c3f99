package pipeline

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	_ "github.com/golocker/locker/drivers/all"
)

// knock sends a command every millisecond for a duration and returns when it reached the driver, counted from the
// beginning.
func knock(t *testing.T, d *fake, p *Pipeline, duration time.Duration) (sent []int) {
	t.Helper()
	for ms := range int(duration / time.Millisecond) {
		before := d.trips()
		if err := do(t.Context(), p, get); !errors.Is(err, drivers.ErrNotSent) || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("after %d ms: %v must say why", ms, err)
		}
		if d.trips() > before {
			sent = append(sent, ms)
		}
		time.Sleep(time.Millisecond)
	}
	return sent
}

// A node that is down is not dialled for every command; one that is back is found soon.
func TestNodeThatIsDownIsRarelyDialled(t *testing.T) {
	want := []int{0, 10, 30, 70, 150, 250, 350, 450} // backoffs of 10, 20, 40, 80, 100, 100, … ms
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		for _, again := range []string{"", " again"} {
			d.will(fails(refused))
			if got := knock(t, d, p, 500*time.Millisecond); !slices.Equal(got, want) {
				t.Errorf("down%s: sent after %d ms, want %d", again, got, want)
			}
			d.will(ok)
			time.Sleep(maxDialBackoff)
			for range 2 {
				if err := do(t.Context(), p, get); err != nil {
					t.Errorf("back%s: %v", again, err)
				}
			}
		}
	})
}

// Somebody may wait for what a release frees, so it is sent during a backoff. If it is answered, the node is back, and
// the backoff is over.
func TestReleaseEndsTheDialBackoff(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		d.will(fails(refused))
		knock(t, d, p, 200*time.Millisecond)
		d.will(ok)
		if err := do(t.Context(), p, get); err == nil {
			t.Error("sent during the backoff")
		}
		if err := do(t.Context(), p, release); err != nil || d.sent("DEL") != 1 {
			t.Errorf("%v, %d releases were sent", err, d.sent("DEL"))
		}
		if err := do(t.Context(), p, get); err != nil {
			t.Errorf("after an answer: %v", err)
		}
		d.will(fails(refused))
		if got := knock(t, d, p, 20*time.Millisecond); !slices.Equal(got, []int{0, 10}) {
			t.Errorf("down again: sent after %d ms; the first backoff must be short again", got)
		}
	})
}

// Errors that say nothing about the node, or not that it cannot be connected to, are no reason to refuse others.
func TestOnlyFailedDialsBeginABackoff(t *testing.T) {
	for name, err := range map[string]error{
		"pool exhausted":         drivers.NotSent(errors.New("redis: connection pool timeout")),
		"context had ended":      drivers.NotSent(context.DeadlineExceeded),
		"connection broke":       &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET},
		"closed before anything": drivers.NotSent(&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}),
		// A cluster: others may have been sent.
		"part of it was dialled": &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
		"a reply":                drivers.ServerError("connection refused"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
				d.will(fails(err))
				if got := do(t.Context(), p, get); !errors.Is(got, err) {
					t.Error(got)
				}
				d.will(ok)
				if err := do(t.Context(), p, get); err != nil {
					t.Errorf("the next call: %v", err)
				}
			})
		})
	}
}

// What the drivers say of a server that is down is understood.
func TestDialBackoffWithEachDriver(t *testing.T) {
	for _, name := range drivers.Names() {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			addr := l.Addr().String()
			_ = l.Close()
			d, err := drivers.Open(t.Context(), name, drivers.Config{Network: "tcp", Addr: addr})
			if err != nil {
				t.Fatal(err)
			}
			p := New(d, timeout)
			if err := do(t.Context(), p, get); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Error(err)
			}
			p.mu.Lock()
			if p.dialBackoff.length != minDialBackoff {
				t.Errorf("backs off for %v", p.dialBackoff.length)
			}
			p.mu.Unlock()
			p.Close()
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Whatever an error says, only a failed dial begins a backoff.
func FuzzErrors(f *testing.F) {
	f.Add("NOSCRIPT x", true, uint8(0))
	f.Add("ERR", false, uint8(1))
	f.Add("connection refused", true, uint8(2))
	f.Fuzz(func(t *testing.T, text string, unsent bool, wrap uint8) {
		err := []error{
			errors.New(text), drivers.ServerError(text), context.Canceled, context.DeadlineExceeded,
			fmt.Errorf("dial: %w", errors.New(text)),
		}[int(wrap)%5]
		if unsent {
			err = drivers.NotSent(err)
		}
		if isUnreachable(err) {
			t.Errorf("%v begins a backoff", err)
		}
	})
}
