package node

import (
	"testing"
	"testing/synctest"
	"time"
)

// Releases and clean-ups are sent during the backoff after a failed dial, and find out that it is back.
func TestReleaseIsSentDuringTheDialBackoff(t *testing.T) {
	for name, release := range map[string]func(t *testing.T, n *Node){
		"release": func(t *testing.T, n *Node) {
			if err := n.Release(t.Context(), request("held")); err != nil {
				t.Error(err)
			}
		},
		"clean-up": func(_ *testing.T, n *Node) {
			req := request("doubtful")
			n.Undo(&req, false)
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake, n *Node) {
				d.will(fails(refused))
				for range 200 {
					if _, err := n.Acquire(t.Context(), request("a")); err == nil {
						t.Fatal("granted by a node that is down")
					}
					time.Sleep(time.Millisecond)
				}
				d.will(ok)
				if _, err := n.Acquire(t.Context(), request("a")); err == nil {
					t.Error("sent during the backoff")
				}
				d.forgetAll()
				release(t, n)
				if got := len(d.sent("release")); got != 1 {
					t.Errorf("%d releases were sent, want 1", got)
				}
				if _, err := n.Acquire(t.Context(), request("a")); err != nil {
					t.Errorf("after an answer: %v", err)
				}
			})
		})
	}
}
