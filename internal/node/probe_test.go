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

// Nobody answers a probe that travels over a connection from before a restart of the server. Such a probe is repeated
// soon, and not only when the next one is due: until a probe is counted, waiters poll, and are not told of releases.
func TestProbeThatFailedIsRepeated(t *testing.T) {
	ways := map[string]fate{
		"it is lost":         {lost: true, cut: true},
		"its answer is lost": {mute: true, cut: true},
		"it is not sent":     {unsent: true},
		"it is refused":      {refused: true},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			onStreet(t, func(x *street) {
				lease := x.party().must()
				p := x.party()
				c := p.lock()
				c.waits(time.Second)
				for failing := range 3 {
					left := failing
					p.meddle(func(kind string) fate {
						if kind != "PUBLISH" || left == 0 {
							return fate{}
						}
						left--
						return way
					})
					x.node.Cut()
					c.waits(4*inboxMinPause + 20*oneWay) // the pauses before the connection and before each repetition
					if !p.node.inbox.live(p.node.inbox.name) {
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

// Probes that fail for long are repeated at a limited rate.
func TestProbesThatAlwaysFail(t *testing.T) {
	onStreet(t, func(x *street) {
		lease := x.party().must()
		p := x.party()
		p.meddle(func(kind string) fate { return fate{lost: kind == "PUBLISH", cut: true} })
		c := p.lock()
		before := p.sent("PUBLISH")
		c.waits(time.Minute)
		if n := p.sent("PUBLISH") - before; n > 130 {
			x.Errorf("%d probes in a minute", n)
		}
		p.meddle(nil)
		c.waits(inboxMaxPause + 10*oneWay)
		if !p.node.inbox.live(p.node.inbox.name) {
			x.Error("the subscription is not counted when probes are answered")
		}
		x.unlock(lease)
		x.unlock(c.gets(time.Second))
		x.nothing()
	})
}

// Listeners that come while probes fail do not put off the next repetition.
func TestNewListenersDoNotDelayTheProbe(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		d := &audible{fake: fake{answer: ok}}
		n := New(d, Options{Name: "n1", Prefix: "p:", Timeout: timeout})
		d.will(func(context.Context, []drivers.Command) ([]drivers.Reply, error) { return nil, refused })
		_ = n.Extend(t.Context(), request("a")) // the node rests
		live, stop := n.Notify("a", func() {})
		defer stop()
		synctest.Wait()
		for i := range 10 {
			_, stop := n.Notify(fmt.Sprint("b", i), func() {})
			defer stop()
			synctest.Wait()
		}
		d.will(ok)
		time.Sleep(2 * inboxMinPause)
		if !live() {
			t.Error("the subscription is not counted soon")
		}
		_ = n.Close()
	})
}
