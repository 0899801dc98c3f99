package node

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
)

const (
	clusterDown = "CLUSTERDOWN Hash slot not served"
	noPerm      = "NOPERM User locker has no permissions to run the 'publish' command"
)

// Nobody answers a probe that travels over a connection from before a restart of the server. Such a probe is repeated
// soon, and not only when the next one is due: until a probe is counted, waiters poll, and are not told of releases.
func TestProbeThatFailedIsRepeated(t *testing.T) {
	ways := map[string]fault{
		"it is lost":         {lost: true, cut: true},
		"its answer is lost": {mute: true, cut: true},
		"it is not sent":     {unsent: true},
		"it is refused":      {refused: clusterDown},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				lease := x.client().must()
				p := x.client()
				c := p.lock()
				c.waits(time.Second)
				for failing := range 3 {
					left := failing
					p.inject(func(kind string) fault {
						if kind != "PUBLISH" || left == 0 {
							return fault{}
						}
						left--
						return way
					})
					x.node.Cut()
					c.waits(4*inboxMinPause + 20*oneWay) // the pauses before the connection and before each repetition
					if !p.node.inbox.live() {
						x.Fatalf("the subscription is not counted after %d probes that failed", failing)
					}
				}
				released := time.Now()
				x.unlock(lease)
				x.unlock(c.gets(time.Second))
				if took := c.at.Sub(released); took > 5*oneWay {
					x.Errorf("handed over within %v", took)
				}
				x.nothing()
			})
		})
	}
}

// Probes that fail for long are repeated at a limited rate, and hardly ever if they are refused for good. Waiters poll
// meanwhile.
func TestProbesThatAlwaysFail(t *testing.T) {
	for _, tt := range []struct {
		name        string
		way         fault
		least, most int           // probes in a minute
		again       time.Duration // when the next one comes at the latest
	}{
		{"they are lost", fault{lost: true, cut: true}, 40, 130, inboxMaxPause},
		{"they are refused for now", fault{refused: clusterDown}, 40, 130, inboxMaxPause},
		{"they are refused for good", fault{refused: noPerm}, 10, 20, inboxProbe},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				lease := x.client().must()
				p := x.client()
				p.inject(func(kind string) fault {
					if kind != "PUBLISH" {
						return fault{}
					}
					return tt.way
				})
				c := p.lock()
				before, all := p.sent("PUBLISH"), p.sent("")
				c.waits(time.Minute)
				if n := p.sent("PUBLISH") - before; n < tt.least || n > tt.most {
					x.Errorf("%d probes in a minute", n)
				}
				if looks := p.sent("") - all - tt.most; looks < int(time.Minute/untoldPoll) {
					x.Errorf("the waiter has looked less than %d times in a minute", looks)
				}
				p.inject(nil)
				c.waits(tt.again + 10*oneWay)
				if !p.node.inbox.live() {
					x.Error("the subscription is not counted when probes are answered")
				}
				x.unlock(lease)
				x.unlock(c.gets(time.Second))
				x.nothing()
			})
		})
	}
}

// A waiter that was told that it would be told, and whose right to publish ends then, looks at every heartbeat until
// the subscription has been silent for too long, and polls from then on.
func TestRightToPublishEnds(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		p := x.client()
		c := p.lock()
		c.waits(time.Second)
		p.inject(func(kind string) fault {
			if kind == "PUBLISH" {
				return fault{refused: noPerm}
			}
			return fault{}
		})
		c.waits(2 * inboxProbe)
		if !p.node.inbox.live() {
			x.Error("one refusal has ended the subscription")
		}
		c.waits(2 * inboxProbe)
		if p.node.inbox.live() {
			x.Error("the subscription is trusted although no probe has come for long")
		}
		p.inject(nil)
		x.unlock(lease)
		x.unlock(c.gets(untoldPoll + 10*oneWay))
		x.nothing()
	})
}

// Listeners that come while probes fail do not put off the next repetition.
func TestNewListenersDoNotDelayTheProbe(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		d := &audible{fake: fake{answer: ok}}
		n := New(d, Options{Name: "n1", Prefix: "p:", Timeout: timeout})
		d.will(func(context.Context, []drivers.Command) ([]drivers.Reply, error) { return nil, refused })
		_ = n.Extend(t.Context(), request("a")) // begins a backoff
		n.inbox.expect("a", func(bool) {})
		synctest.Wait()
		for i := range 10 {
			n.inbox.expect(fmt.Sprint("b", i), func(bool) {})
			synctest.Wait()
		}
		d.will(ok)
		time.Sleep(2 * inboxMinPause)
		if !n.inbox.live() {
			t.Error("the subscription is not counted soon")
		}
		_ = n.Close()
	})
}
