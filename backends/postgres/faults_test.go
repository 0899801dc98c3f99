package postgres_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/lockertrace"
)

// waiting calls Lock and returns when it waits. If hints is not nil, it counts the notifications.
func waiting(t *testing.T, l locker.Locker, key string, hints *atomic.Int64) (granted <-chan locker.Lease) {
	t.Helper()
	waits, done := make(chan struct{}, 1), make(chan locker.Lease, 1)
	ctx := lockertrace.With(t.Context(), &lockertrace.Trace{
		Waiting: func(lockertrace.Waiting) { waits <- struct{}{} },
		Woken: func(w lockertrace.Wake) {
			if hints != nil && w.Reason == lockertrace.WakeNotify {
				hints.Add(1)
			}
		},
	})
	go func() {
		lease, err := l.Lock(ctx, key, locker.TTL(time.Minute), locker.Patience(time.Hour))
		if err != nil && t.Context().Err() == nil {
			t.Errorf("Lock of a waiter: %v", err)
		}
		done <- lease
	}()
	select {
	case <-waits:
	case <-done:
		t.Fatal("Lock of a held lock: it has returned")
	}
	return done
}

// A server that is killed and started again has its locks, and greater tokens. Waiters queue anew.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	holder, other := client(t, s.URL("postgres")), client(t, s.URL("postgres"))
	before := lock(t, holder, "k", locker.TTL(time.Minute))
	granted := waiting(t, other, "k", nil)
	s.Restart()
	eventually(t, "the holder can extend", func() bool { return before.Extend(t.Context()) == nil })
	must(t, "Verify", locker.Verify(t.Context(), before))
	select {
	case <-granted:
		t.Error("the waiter has a lock that is held")
	default:
	}
	must(t, "Unlock", before.Unlock(t.Context()))
	after := <-granted
	if after.Fence() <= before.Fence() {
		t.Errorf("got token %d after %d", after.Fence(), before.Fence())
	}
	must(t, "Unlock", after.Unlock(t.Context()))
}

// Requests that a stopped server executes later leave nothing behind, although their callers have left.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	p := pool(t, s.URL("postgres"))
	l := client(t, s.URL("postgres"), postgres.Timeout(500*time.Millisecond))
	eventually(t, "there is a connection", func() bool {
		lease, err := l.Lock(t.Context(), "k")
		return err == nil && lease.Unlock(t.Context()) == nil
	})
	s.Pause()
	// The context ends before the request does, and after it.
	for _, timeout := range []time.Duration{50 * time.Millisecond, 2 * time.Second} {
		for _, acquire := range []func(context.Context, string, ...locker.Option) (locker.Lease, error){l.TryLock, l.Lock} {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			start := time.Now()
			if _, err := acquire(ctx, "k", locker.TTL(time.Hour)); !errors.Is(err, locker.ErrUnavailable) {
				t.Errorf("a server that is stopped: got %v, want ErrUnavailable", err)
			}
			if took := time.Since(start); took > timeout+2*time.Second {
				t.Errorf("a server that is stopped: the call took %v, and its context ended after %v", took, timeout)
			}
			cancel()
		}
	}
	s.Resume()
	const left = "SELECT 'lock' FROM locker.locks UNION ALL SELECT 'waiter' FROM locker.waiters"
	eventually(t, "nothing is left", func() bool { return len(texts(t, p, left)) == 0 })
}

// The place of a waiter does not end with a TTL. So it is given up also if the server hangs for longer than that.
func TestServerHangsForLongerThanATTL(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	p := pool(t, s.URL("postgres"))
	holder, other := client(t, s.URL("postgres")), client(t, s.URL("postgres"), postgres.Timeout(500*time.Millisecond))
	lease := lock(t, holder, "k", locker.TTL(time.Hour), locker.NoRenewal())
	const waiters = "SELECT ticket FROM locker.waiters"
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	const ttl = 2 * time.Second
	go func() {
		_, err := other.Lock(ctx, "k", locker.TTL(ttl), locker.Patience(time.Hour))
		left <- err
	}()
	eventually(t, "the waiter has a place", func() bool { return len(texts(t, p, waiters)) == 1 })
	s.Pause()
	leave()
	if err := <-left; err == nil {
		t.Error("Lock of a held lock: got no error")
	}
	<-time.After(2 * ttl)
	s.Resume()
	eventually(t, "the place is given up", func() bool { return len(texts(t, p, waiters)) == 0 })
	must(t, "Unlock", lease.Unlock(t.Context()))
}

// An attempt may arrive at the server after it was undone.
func testLateAttemptDoesNothing(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	run(t, p, "SELECT locker.undo('late', 'token', 'ticket', 60000000)")
	if _, err := p.Exec(t.Context(), "SELECT locker.acquire('late', 'token', '', 60000000, 'ticket', '')"); err == nil {
		t.Error("an attempt that was undone before it arrived: got a grant, want an error")
	}
	must(t, "Unlock", lock(t, client(t, s.URL("postgres"), postgres.Prefix("")), "late").Unlock(t.Context()))
}

// A waiter is there if the server has seen it within three seconds, by its clock, which may have been set back since.
func testPresence(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	for seen, want := range map[string]string{
		"-2999 ms": "true", "-3000 ms": "false", "2999 ms": "true", "3000 ms": "false", "1 hour": "false",
	} {
		const present = "SELECT locker.present(t + $1::text::interval, t)::text FROM clock_timestamp() t"
		if got := texts(t, p, present, seen); !slices.Equal(got, []string{want}) {
			t.Errorf("a waiter that was seen %s from now: got %v, want %s", seen, got, want)
		}
	}
}

// Waiters behind one that has died get the lock within about four seconds, also if the server's clock was set back by
// an hour since the other one was seen. A notification that is lost costs about a second.
func testDeadWaiter(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	holder, other := client(t, s.URL("postgres"), postgres.Prefix("")), client(t, s.URL("postgres"), postgres.Prefix(""))
	for key, ahead := range map[string]string{"dead": "0", "dead since an hour to come": "1 hour"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			lease := lock(t, holder, key)
			run(t, p, "SELECT locker.acquire($1, $2, '', 60000000, $2, 'nobody')", []byte(key), "its "+key)
			const shift = "UPDATE locker.waiters SET seen = seen + $2::text::interval WHERE name = $1"
			run(t, p, shift, []byte(key), ahead)
			granted := waiting(t, other, key, nil)
			must(t, "Unlock", lease.Unlock(t.Context()))
			select {
			case next := <-granted:
				must(t, "Unlock", next.Unlock(t.Context()))
			case <-time.After(30 * time.Second):
				t.Error("the waiter behind a dead one does not get the lock")
			}
		})
	}
}

// A lock that is free goes to the first of its waiters, which is notified, and to nobody else.
func testTurns(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	listening, err := p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer listening.Release()
	_, err = listening.Exec(t.Context(), "LISTEN turns")
	must(t, "LISTEN", err)
	granted := func(token, ticket string) bool {
		const acquire = "SELECT 'granted' FROM locker.acquire('turns', $1, '', 60000000, $2, 'turns') WHERE fence IS NOT NULL"
		return len(texts(t, p, acquire, token, ticket)) > 0
	}
	if !granted("holder's", "") || granted("first's", "first") || granted("second's", "second") {
		t.Fatal("a lock that is free was not granted, or one that is held was")
	}
	run(t, p, "SELECT locker.release('turns', $1, 0)", "holder's")
	for _, ticket := range []string{"second", ""} {
		// The first waiter does not look away, however slow the machine is.
		run(t, p, "UPDATE locker.waiters SET seen = clock_timestamp() + interval '2900 ms' WHERE ticket = 'first'")
		if granted("another's", ticket) {
			t.Error("another one than the first waiter was granted the lock")
		}
	}
	n, err := listening.Conn().WaitForNotification(t.Context())
	if err != nil || n.Payload != "first" {
		t.Errorf("got the notification %v, %v, want one for the first waiter", n, err)
	}
	if !granted("first's", "first") {
		t.Error("the first waiter was not granted the lock")
	}
	run(t, p, "SELECT locker.undo('turns', $1, 'second', 0)", "another's")
	run(t, p, "SELECT locker.release('turns', $1, 0)", "first's")
}

// What holders and waiters that have died have left is removed, and nothing else.
func testSweep(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	run(t, p, "SELECT locker.acquire('swept', 'sweep', '', 1, '', '')")
	run(t, p, "SELECT locker.acquire('not swept', 'sweep', '', 60000000, '', '')")
	run(t, p, "SELECT locker.acquire('not swept', 'another', '', 60000000, 'not swept', '')")
	const left = "SELECT encode(name, 'escape') FROM locker.locks WHERE token = 'sweep' ORDER BY name"
	eventually(t, "an expired lock is swept", func() bool {
		run(t, p, "SELECT locker.sweep(interval '10 seconds')")
		return slices.Equal(texts(t, p, left), []string{"not swept"})
	})
	run(t, p, "SELECT locker.undo('not swept', 'sweep', '', 0)")
	run(t, p, "SELECT locker.undo('not swept', 'another', 'not swept', 0)")
}
