package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
)

func openDriver(t testing.TB, h DriverHarness, addr string) drivers.Driver {
	t.Helper()
	return closeAtEnd(t, h.Open(t, addr))
}

func closeAtEnd(t testing.TB, d drivers.Driver) drivers.Driver {
	t.Helper()
	if d == nil {
		t.Fatal("conformance: the harness gave no driver")
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: expected no error, seen %v", err)
		}
	})
	return d
}

// newKey returns an unused key. d, a driver that reaches the server, deletes it at the end of the test. The braces put
// all keys into one slot of a cluster.
func newKey(t testing.TB, d drivers.Driver) string {
	key := "conformance:{}:" + rand.Text()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, _ = d.Do(ctx, drivers.Command{"DEL", key})
	})
	return key
}

// attempt calls Do with a deadline, and fails the check if Do does not return soon after it.
func attempt(t testing.TB, d drivers.Driver, timeout time.Duration, cmds ...drivers.Command) ([]drivers.Reply, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return call(ctx, t, d, timeout+slack, cmds...)
}

// call calls Do, and fails the check if Do has not returned after limit. Do then continues in its goroutine.
func call(ctx context.Context, t testing.TB, d drivers.Driver, limit time.Duration,
	cmds ...drivers.Command) ([]drivers.Reply, error) {
	t.Helper()
	type result struct {
		replies []drivers.Reply
		err     error
	}
	done := make(chan result, 1)
	go func() {
		replies, err := d.Do(ctx, cmds...)
		done <- result{replies, err}
	}()
	select {
	case r := <-done:
		if r.err == nil && len(r.replies) != len(cmds) {
			t.Fatalf("%s: expected %d replies, seen %d", name(cmds), len(cmds), len(r.replies))
		}
		return r.replies, r.err
	case <-time.After(limit):
		t.Fatalf("%s: expected Do to return, seen nothing for %v", name(cmds), limit)
		return nil, nil
	}
}

// must is attempt for calls that should succeed.
func must(t testing.TB, d drivers.Driver, cmds ...drivers.Command) []drivers.Reply {
	t.Helper()
	replies, err := attempt(t, d, patience, cmds...)
	if err != nil {
		t.Fatalf("%s: expected no error, seen %v", name(cmds), err)
	}
	return replies
}

// eventually calls Do until it succeeds. Each attempt may take as long as all attempts before it together, and a second
// at least. The first limits are short for drivers that need several attempts after an outage. With a fixed limit, a
// busy machine that is always a little too slow for a new connection would lose the progress of every attempt.
func eventually(t testing.TB, d drivers.Driver, cmd drivers.Command) {
	t.Helper()
	var err error
	for start := time.Now(); time.Since(start) < recovery; time.Sleep(10 * time.Millisecond) {
		if _, err = attempt(t, d, max(time.Second, time.Since(start)), cmd); err == nil {
			return
		}
	}
	t.Fatalf("%s: expected success within %v, seen %v", name([]drivers.Command{cmd}), recovery, err)
}

func expect(t testing.TB, what string, want, seen drivers.Reply) {
	t.Helper()
	if !reflect.DeepEqual(want, seen) {
		t.Errorf("%s: expected %s, seen %s", what, show(want), show(seen))
	}
}

func expectNotSent(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: expected an error that matches ErrNotSent, seen none", what)
	} else if !errors.Is(err, drivers.ErrNotSent) {
		t.Errorf("%s: expected an error that matches ErrNotSent, seen %q, which does not", what, err)
	}
}

func show(v drivers.Reply) string {
	text := fmt.Sprintf("%#v", v)
	if len(text) > 300 {
		text = fmt.Sprintf("%s... (%d bytes)", text[:300], len(text))
	}
	return text
}

func name(cmds []drivers.Command) string {
	if len(cmds) == 1 {
		return cmds[0][0]
	}
	return fmt.Sprintf("batch of %d from %s", len(cmds), cmds[0][0])
}
