package conformance

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
)

// stall is the time limit of calls that are not answered.
const stall = 100 * time.Millisecond

func unreachableIsNotSent(t testing.TB, h DriverHarness) {
	addr := "127.0.0.1:1"
	if h.Unreachable != nil {
		addr = h.Unreachable(t)
	}
	d := openDriver(t, h, addr)
	for range 2 { // a client may treat the second failure differently
		_, err := attempt(t, d, patience, drivers.Command{"PING"})
		expectNotSent(t, "one command", err)
		_, err = attempt(t, d, patience, drivers.Command{"PING"}, drivers.Command{"PING"})
		expectNotSent(t, "a batch", err)
	}
}

// throughRelay opens a driver whose connections pass through a relay, and sends a command, so that the handshake is
// complete. The witness is connected to the server directly and shows which commands were executed.
func throughRelay(t testing.TB, h DriverHarness) (d, witness drivers.Driver, r *relay) {
	t.Helper()
	addr := h.Addr(t)
	r = newRelay(t, addr)
	r.up(t)
	witness = openDriver(t, h, addr)
	d = openDriver(t, h, r.addr)
	must(t, d, drivers.Command{"PING"})
	must(t, d, drivers.Command{"PING"}, drivers.Command{"PING"})
	return d, witness, r
}

func atMostOnce(t testing.TB, h DriverHarness) {
	d, witness, r := throughRelay(t, h)
	for _, batch := range []int{1, 3} {
		keys := make([]string, batch)
		cmds := make([]drivers.Command, batch)
		for i := range cmds {
			keys[i] = newKey(t, witness)
			cmds[i] = drivers.Command{"INCR", keys[i]}
		}
		r.cutAfter(keys[0])
		if replies, err := attempt(t, d, patience, cmds...); err == nil {
			t.Errorf("%s, its reply lost: expected an error, seen replies %s", name(cmds), show(replies))
		}
		if !r.seen() {
			t.Errorf("%s: expected it to be sent, seen nothing pass", name(cmds))
			continue
		}
		// The server executes received commands even if the connection is closed, but perhaps a little later.
		last := drivers.Command{"EXISTS", keys[batch-1]}
		for end := time.Now().Add(patience); must(t, witness, last)[0] != int64(1) && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		eventually(t, d, drivers.Command{"PING"}) // the driver has now sent everything that it would send
		for i, key := range keys {
			if seen := must(t, witness, drivers.Command{"GET", key})[0]; seen != "1" {
				t.Errorf("command %d of %d, its reply lost: expected it executed once, seen a counter of %s", i+1,
					batch, show(seen))
			}
		}
	}
}

func notSentIsCertain(t testing.TB, h DriverHarness) {
	d, witness, r := throughRelay(t, h)
	check := func(what string, cmds ...drivers.Command) {
		t.Helper()
		_, err := attempt(t, d, stall, cmds...)
		if r.seen() && errors.Is(err, drivers.ErrNotSent) {
			t.Errorf("%s: expected an error that does not match ErrNotSent, for the server has the command; seen %q",
				what, err)
		}
	}
	for _, what := range []string{"one command", "a batch"} {
		cmds := []drivers.Command{{"INCR", newKey(t, witness)}}
		if what == "a batch" {
			cmds = append(cmds, cmds[0])
		}
		r.cutAfter(cmds[0][1])
		check(what+", connection lost", cmds...)
		eventually(t, d, drivers.Command{"PING"})
		r.swallowAfter(cmds[0][1])
		check(what+", reply swallowed", cmds...)
		eventually(t, d, drivers.Command{"PING"})
	}
}

func deadlineBounds(t testing.TB, h DriverHarness) {
	var patient sync.WaitGroup
	t.Cleanup(patient.Wait)
	mute := openDriver(t, h, muteServer(t))
	for _, cmds := range [][]drivers.Command{{{"PING"}}, {{"PING"}, {"PING"}}} {
		if _, err := attempt(t, mute, stall, cmds...); err == nil {
			t.Errorf("%s to a server that never answers: expected an error, seen none", name(cmds))
		}
	}
	// A client that opens one connection for all callers might apply the first caller's deadline to all of them.
	shared := openDriver(t, h, muteServer(t))
	patient.Go(func() { _, _ = shared.Do(context.WithoutCancel(t.Context()), drivers.Command{"PING"}) })
	time.Sleep(stall / 10) // no assertion depends on the order
	for range 3 {          // on a busy machine the first one may be ahead of the other caller
		if _, err := attempt(t, shared, stall, drivers.Command{"PING"}); err == nil {
			t.Errorf("PING beside a caller without a deadline: expected an error, seen none")
		}
	}
	d, witness, r := throughRelay(t, h)
	for _, n := range []int{1, 2} {
		cmds := []drivers.Command{{"INCR", newKey(t, witness)}, {"PING"}}[:n]
		r.swallowAfter(cmds[0][1])
		if _, err := attempt(t, d, stall, cmds...); err == nil {
			t.Errorf("%s on a connection that fell silent: expected an error, seen none", name(cmds))
		}
	}
}

func endedContextSendsNothing(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	key := newKey(t, d)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	expired, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	for _, warm := range []bool{false, true} {
		for what, ctx := range map[string]context.Context{"a cancelled context": cancelled,
			"an expired context": expired} {
			_, err := call(ctx, t, d, slack, drivers.Command{"INCR", key})
			expectNotSent(t, what, err)
			_, err = call(ctx, t, d, slack, drivers.Command{"INCR", key}, drivers.Command{"INCR", key})
			expectNotSent(t, what+", batch", err)
		}
		if !warm {
			must(t, d, drivers.Command{"PING"})
		}
	}
	expect(t, "whether anything was executed", int64(0), must(t, d, drivers.Command{"EXISTS", key})[0])
}

func opensWhileDown(t testing.TB, h DriverHarness) {
	r := newRelay(t, h.Addr(t))
	d := openDriver(t, h, r.addr)
	_, err := attempt(t, d, patience, drivers.Command{"PING"})
	expectNotSent(t, "server down", err)
	r.up(t)
	eventually(t, d, drivers.Command{"PING"})
}

func recoversAfterOutage(t testing.TB, h DriverHarness) {
	d, _, r := throughRelay(t, h)
	r.down()
	for range 3 {
		if _, err := attempt(t, d, patience, drivers.Command{"PING"}); err == nil {
			t.Errorf("server down: expected an error, seen none")
		}
	}
	r.up(t)
	eventually(t, d, drivers.Command{"PING"})
	for range 20 { // for every connection that a pool may have kept
		_, _ = attempt(t, d, patience, drivers.Command{"PING"}, drivers.Command{"PING"})
	}
	expect(t, "server back", []drivers.Reply{"PONG", "PONG"},
		must(t, d, drivers.Command{"PING"}, drivers.Command{"PING"}))
}

func closeIsIdempotentAndFinal(t testing.TB, h DriverHarness) {
	addr := h.Addr(t)
	witness := openDriver(t, h, addr)
	key := newKey(t, witness)
	for _, used := range []bool{false, true} {
		d := openDriver(t, h, addr) // which closes it a third time
		if used {
			must(t, d, drivers.Command{"PING"})
		}
		for range 2 {
			if err := d.Close(); err != nil {
				t.Errorf("Close: expected no error, seen %v", err)
			}
			_, err := attempt(t, d, patience, drivers.Command{"INCR", key})
			expectNotSent(t, "Do after Close", err)
		}
	}
	expect(t, "whether anything was executed after Close", int64(0),
		must(t, witness, drivers.Command{"EXISTS", key})[0])
}
