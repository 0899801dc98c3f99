package node

import (
	"testing"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/redis/pipeline"
	"github.com/golocker/locker/internal/redis/script"
)

// Commands of a lock that is known as contended have no usual case. Both pipelines of a node find out about it.
func TestContendedLocksHaveNoUsualCase(t *testing.T) {
	n := New(&fake{answer: ok}, Options{
		Timeout: timeout, Replicas: pipeline.Replicas{Want: 1, Timeout: time.Second},
	})
	defer n.Close()
	req := request("a")
	for _, contended := range []bool{false, true} {
		a := n.attempt(&req)
		for name, cmd := range map[string]script.Command{
			"acquire":           a.Acquire(time.Second, 1, 0),
			"enqueue":           a.Enqueue(time.Second, time.Second, 0, ""),
			"release":           n.releaseOf(&req, true, script.NotifyQueue).Command(),
			"release of a turn": n.releaseOf(&req, true, script.NotifyTurn).Command(),
		} {
			if (cmd.Usual == nil) != contended {
				t.Errorf("%s, contended %t: a usual case %t", name, contended, cmd.Usual != nil)
			}
		}
		if n.undoing(&req, true, script.NotifyQueue).Command().Usual == nil {
			t.Errorf("contended %t: a clean-up has no usual case, and cannot be joined with others", contended)
		}
		n.granting.Unusual(a.Lock)
	}
	if n.pipeline.Unusual == nil {
		t.Error("releases do not find out that a lock is contended")
	}
}

// A clean-up mostly finds that the lock is gone. If that made the lock count as contended, an outage with many
// clean-ups would slow down all others.
func TestCleanUpsSayNothingOfContention(t *testing.T) {
	_, n := real(t)
	gone, held := backend.Request{Key: "gone", Token: "a", TTL: time.Second, Fence: 1}, request("a")
	n.ReleaseLater(&gone, true, "")
	n.chores.Close(time.Minute)
	if n.contended.lately(n.keys(gone.Key).Lock) {
		t.Error("a lock counts as contended because of its clean-up")
	}
	acquire(t, n, "other", time.Minute)
	if _, err := n.Acquire(t.Context(), held); err == nil {
		t.Fatal("a lock that is held was acquired")
	}
	if !n.contended.lately(n.keys(held.Key).Lock) {
		t.Error("a lock that was found held does not count as contended")
	}
}
