package node

import (
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/wire"
)

func force(t *testing.T, n *Node, owner string, want error) inspect.Inspection {
	t.Helper()
	seen, err := n.ForceRelease(t.Context(), "k", owner)
	if !errors.Is(err, want) {
		t.Errorf("ForceRelease from %q: %v, want %v", owner, err, want)
	}
	return seen
}

// What a lock was taken from by force does not come back: neither by an acquisition that was on its way, nor does a
// release that leaves a tombstone say that it was still there.
func TestForceReleaseIsFinal(t *testing.T) {
	s, n := real(t)
	before := acquire(t, n, "a", 10*time.Second)
	if seen := force(t, n, "a", nil); seen.State != inspect.Held || seen.Owner != "a" || seen.Fence != before {
		t.Errorf("it says that it took the lock from %+v", seen)
	}
	v := n.vote(send(t, n, attempt("k", "a").Acquire(10*time.Second, 1, 0)), nil)
	if !errors.Is(v.Err, ErrGivenUp) || v.Doubtful {
		t.Errorf("a late acquisition of the former owner got %+v", v)
	}
	// The second tombstone takes the place of the mark.
	for _, tombstone := range []time.Duration{0, 10*time.Second + cleanupLife} {
		r := send(t, n, script.Release{Attempt: attempt("k", "a"), Tombstone: tombstone}.Command())
		if r != int64(4) {
			t.Errorf("its release answered %v", r)
		}
	}
	if after := acquire(t, n, "b", 10*time.Second); after <= before {
		t.Errorf("the next token is %d after %d", after, before)
	}
	for _, key := range s.Keys(t, "*:lockwait") {
		if left := s.PTTL(t, key); left <= 0 || left > 10*time.Second+cleanupLife {
			t.Errorf("the tombstone lives for %v", left)
		}
	}
}

// Delivered twice, the second takes nothing, and does not say that the first did not either.
func TestForceScriptIsIdempotent(t *testing.T) {
	s, n := real(t)
	acquire(t, n, "a", 10*time.Second)
	state, err := n.inspect(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{1, 2} {
		ready := make(chan *Call, 1)
		n.StartForce(ready, 0, "k", state, false)
		if c := <-ready; c.call.Reply != want {
			t.Errorf("delivery %d answered %v, want %d", i+1, c.call.Reply, want)
		}
		if i == 0 {
			acquire(t, n, "b", 10*time.Second)
		}
	}
	if got, _ := s.Cmd(t, "GET", "k").(string); wire.Token(got) != "b" {
		t.Errorf("the next owner's lock is %v", got)
	}
}

func TestForceReleaseLeavesAloneWhatIsNotALock(t *testing.T) {
	s, n := real(t)
	for what, set := range map[string]func(){
		"a list":                     func() { s.Cmd(t, "RPUSH", "k", "a") },
		"a string without an expiry": func() { s.Cmd(t, "SET", "k", "a") },
	} {
		set()
		for _, owner := range []string{"", "a"} {
			if seen := force(t, n, owner, locker.ErrForeignKey); seen.State != inspect.Foreign || seen.Owner != "" {
				t.Errorf("%s: seen as %+v", what, seen)
			}
		}
		// It may have become one between the look and the release.
		ready := make(chan *Call, 1)
		n.StartForce(ready, 0, "k", State{value: "a"}, false)
		if c := <-ready; c.call.Reply != int64(0) || s.Cmd(t, "DEL", "k") != int64(1) {
			t.Errorf("%s was deleted; answer %v", what, c.call.Reply)
		}
	}
}

// Owners of other libraries may look like anything.
func TestForceReleaseFromOwnersOfAnyKind(t *testing.T) {
	s, n := real(t)
	for _, owner := range []string{"a:b:c", "1:2:", ":", "x\r\n\x00y", "a b", "hold:"} {
		s.Cmd(t, "SET", "k", owner, "PX", 10000)
		force(t, n, "", nil)
		if s.Cmd(t, "EXISTS", "k") != int64(0) {
			t.Errorf("the lock of %q is still there", owner)
		}
	}
}

// Waiters that died are not counted.
func TestInspectCountsWhoWaits(t *testing.T) {
	_, n := real(t)
	acquire(t, n, "a", 10*time.Second)
	for owner, positionTTL := range map[string]time.Duration{
		"b": script.MaxPositionTTL, "c": script.MaxPositionTTL, "d": time.Millisecond,
	} {
		send(t, n, attempt("k", owner).Enqueue(10*time.Second, positionTTL, 0, ""))
	}
	time.Sleep(5 * time.Millisecond) // d is dead now
	seen, err := n.Inspect(t.Context(), "k")
	if err != nil || seen.Waiting != 2 {
		t.Errorf("%d wait, %v", seen.Waiting, err)
	}
	if seen.Held <= 0 || seen.Held > time.Minute {
		t.Errorf("held for %v", seen.Held)
	}
}
