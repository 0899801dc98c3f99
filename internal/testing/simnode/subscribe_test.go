package simnode

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
)

// heard notes what a listener hears, and when.
type heard struct {
	mu     sync.Mutex
	events []string
	lost   error
}

func (h *heard) listener() drivers.Listener {
	start := time.Now()
	note := func(what string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.events = append(h.events, time.Since(start).String()+" "+what)
	}
	return drivers.Listener{
		Subscribed: func(channel string) { note("subscribed " + channel) },
		Message:    func(channel, payload string) { note(channel + " " + payload) },
		Lost:       func(err error) { note("lost"); h.lost = err },
	}
}

func TestSubscribersInVirtualTime(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(n *Node, d drivers.Driver, s drivers.Subscription)
		want error
	}{
		"cut": {func(n *Node, _ drivers.Driver, _ drivers.Subscription) { n.Cut() }, io.EOF},
		"driver closed": {func(_ *Node, d drivers.Driver, _ drivers.Subscription) { _ = d.Close() },
			drivers.ErrClosed},
		"subscription closed": {func(_ *Node, _ drivers.Driver, s drivers.Subscription) { _ = s.Close() },
			drivers.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				n := New()
				n.Deliver = func(_, payload string) (time.Duration, bool) {
					return map[string]time.Duration{"late": time.Second, "never": time.Hour}[payload], payload == "lost"
				}
				d := n.Driver(nil)
				var h heard
				s, err := d.(drivers.Subscriber).Subscribe(t.Context(), h.listener())
				if err != nil {
					t.Fatal(err)
				}
				publish := func(channel, payload string, want int64) {
					t.Helper()
					if got := n.Execute(drivers.Command{"PUBLISH", channel, payload}); got != want {
						t.Errorf("%s on %s has %v receivers, want %d", payload, channel, got, want)
					}
				}
				publish("a", "early", 0)
				if err := s.Subscribe("a", "b"); err != nil {
					t.Fatal(err)
				}
				publish("a", "1", 1)
				publish("b", "late", 1)
				publish("a", "lost", 1)
				publish("a", "2", 1)
				time.Sleep(2 * time.Second)
				if err := s.Unsubscribe("b"); err != nil {
					t.Fatal(err)
				}
				publish("b", "after", 0)
				publish("a", "never", 1)
				synctest.Wait()
				tt.end(n, d, s)
				synctest.Wait()
				publish("a", "too late", 0)
				want := []string{"0s subscribed a", "0s subscribed b", "0s a 1", "1s b late", "1s a 2", "2s lost"}
				if !slices.Equal(h.events, want) || !errors.Is(h.lost, tt.want) {
					t.Errorf("heard %q, %v, want %q, %v", h.events, h.lost, want, tt.want)
				}
				if err := s.Subscribe("c"); err == nil {
					t.Error("no error after the end")
				}
				_ = s.Close()
				_ = d.Close()
			})
		})
	}
}

// A network that is down does not let anybody subscribe.
func TestSubscribeThroughTheNetwork(t *testing.T) {
	n := New()
	d := n.Driver(func(context.Context, []drivers.Command, func() []drivers.Reply) ([]drivers.Reply, error) {
		return nil, drivers.NotSent(io.EOF)
	})
	if _, err := d.(drivers.Subscriber).Subscribe(t.Context(), (&heard{}).listener()); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	_ = d.Close()
}
