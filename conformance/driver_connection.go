package conformance

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
)

// batchUsesOneConnection asks for the IDs of connections, in several calls at a time so that the client has several
// connections.
func batchUsesOneConnection(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	if _, ok := d.(drivers.Cluster); ok {
		return
	}
	eventually(t, d, drivers.Command{"PING"})
	id := func() drivers.Command { return drivers.Command{"CLIENT", "ID"} } // of each call its own
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			for range 10 {
				replies, err := d.Do(t.Context(), id(), id(), id())
				if err != nil {
					t.Errorf("%s: expected no error, seen %v", name([]drivers.Command{id()}), err)
					return
				}
				for _, r := range replies {
					if _, ok := r.(drivers.ServerError); !ok && show(r) != show(replies[0]) {
						t.Errorf("the IDs of the connections of one call: expected the same, seen %s", show(replies))
						return
					}
				}
			}
		})
	}
	calls.Wait()
}

// leavesAReplica has a script answer as a replica does, until the server has none of the connections of before.
func leavesAReplica(t testing.TB, h DriverHarness) {
	addr := h.Addr(t)
	d, witness := openDriver(t, h, addr), openDriver(t, h, addr)
	if _, ok := d.(drivers.Cluster); ok {
		return
	}
	eventually(t, d, drivers.Command{"PING"})
	const text = "READONLY You can't write against a read only replica."
	write := drivers.Command{"EVAL", `return redis.error_reply("` + text + `")`, "0"}
	for _, cmds := range [][]drivers.Command{{write}, {{"PING"}, write}} {
		before := connectionsOf(t, d)
		left := func() bool {
			replies, err := attempt(t, d, patience, cmds...)
			if err == nil && replies[len(cmds)-1] != drivers.ServerError(text) {
				t.Fatalf("%s: expected the refusal %q, seen %s", name(cmds), text, show(replies))
			}
			list, _ := must(t, witness, drivers.Command{"CLIENT", "LIST"})[0].(string)
			return !slices.ContainsFunc(before, func(id string) bool { return strings.Contains(list, "id="+id+" ") })
		}
		if !until(patience, left) {
			t.Errorf("%s, refused with READONLY for %v: expected new connections, seen those of before", name(cmds),
				patience)
		}
	}
}

// connectionsOf returns the IDs of the connections that several calls at a time use.
func connectionsOf(t testing.TB, d drivers.Driver) []string {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ids := make([]string, 4)
	var calls sync.WaitGroup
	for i := range ids {
		calls.Go(func() {
			if replies, err := d.Do(ctx, drivers.Command{"CLIENT", "ID"}); err == nil {
				ids[i] = show(replies[0])
			}
		})
	}
	calls.Wait()
	return ids
}

// blocked is how long a server waits for replicas that do not exist.
const blocked = 2 * time.Second

// waitBlocksNobodyElse has two calls wait for more replicas than any server has. Meanwhile others are answered.
func waitBlocksNobodyElse(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	if _, ok := d.(drivers.Cluster); ok {
		return
	}
	eventually(t, d, drivers.Command{"PING"})
	key := newKey(t, d)
	must(t, d, drivers.Command{"SET", key, "0"})
	var calls sync.WaitGroup
	defer calls.Wait()
	start := time.Now()
	for range 2 {
		calls.Go(func() {
			wait := drivers.Command{"WAIT", "1000", "2000"}
			replies, err := d.Do(t.Context(), drivers.Command{"INCR", key}, wait)
			if err != nil || len(replies) != 2 {
				t.Errorf("WAIT: expected two replies and no error, seen %s, %v", show(replies), err)
			} else if _, refused := replies[1].(drivers.ServerError); !refused && time.Since(start) < blocked {
				t.Errorf("WAIT: expected an answer after %v, seen %s after %v", blocked, show(replies), time.Since(start))
			}
		})
	}
	for seen := drivers.Reply(nil); seen != "2"; { // until both are blocked
		seen = must(t, d, drivers.Command{"GET", key})[0]
		if took := time.Since(start); took >= blocked {
			t.Fatalf("calls beside a WAIT: expected answers within %v, seen them after %v", blocked, took)
		}
	}
	must(t, d, drivers.Command{"PING"})
	if took := time.Since(start); took >= blocked {
		t.Errorf("PING beside a WAIT: expected an answer within %v, seen one after %v", blocked, took)
	}
}
