package node

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/transfer"
)

// export passes l on.
func (x *testbed) export(l locker.Lease, ttl time.Duration) transfer.Text {
	x.Helper()
	text, err := transfer.Export(x.Context(), l, ttl)
	if err != nil {
		x.Fatalf("Export: %v", err)
	}
	return text
}

// resumes makes a lease of text.
func (p *client) resumes(text transfer.Text) locker.Lease {
	p.x.Helper()
	l, err := transfer.Resume(p.x.Context(), p, text)
	if err != nil {
		p.x.Fatalf("Resume: %v", err)
	}
	p.x.sound(l)
	return l
}

// A request of the exporter for the lock that may still be executed leaves a tombstone, and others leave none.
func TestExportStopsRequestsThatAreUnderWay(t *testing.T) {
	for name, tt := range map[string]struct {
		heartbeat fault
		want      int
	}{
		"all were answered":      {fault{}, 0},
		"one was never answered": {fault{mute: true, cut: true}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				holder, p := x.client(), x.client()
				lease := holder.must()
				p.warm()
				c := p.lock()
				p.once("enqueue", tt.heartbeat)
				c.waits(heartbeat)
				x.unlock(lease)
				old := c.gets(3 * time.Second)
				text := x.export(old, time.Minute)
				if n := x.tombstones(); n != tt.want {
					x.Errorf("%d tombstones, want %d", n, tt.want)
				}
				next := x.client().resumes(text)
				late := attempt("p:k", old.Token()).Enqueue(time.Minute, 0, 0, "").Usual.Alone().Words
				for _, when := range []string{"while it is taken", "while it is free"} {
					reply := x.node.Execute(late)
					if r, _ := reply.([]drivers.Reply); tt.want > 0 && (len(r) != 1 || r[0] != int64(-1)) {
						x.Errorf("%s: the exporter's request that comes late is answered %v", when, reply)
					}
					if when == "while it is taken" {
						x.unlock(next)
					}
					if tt.want == 0 {
						break // it comes from nowhere
					}
				}
				x.nothing()
			})
		})
	}
}

// The exporter's lock had ended, and one of its own requests has it again: that is no lock to pass on, and it is
// released.
func TestExportOfALockThatWasGrantedOnceMore(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		p := x.client()
		l := p.must(locker.NoRenewal())
		x.node.Delete("p:k")
		x.node.Execute(attempt("p:k", l.Token()).Enqueue(time.Hour, 0, 0, "").Usual.Alone().Words)
		_, err := transfer.Export(x.Context(), l, time.Hour)
		if !errors.Is(err, locker.ErrNotHeld) {
			x.Errorf("Export: %v", err)
		}
		x.nothing()
	})
}

// An Export that was not answered is undone by Unlock, whether it is executed before, after or never.
func TestExportThatIsNotAnswered(t *testing.T) {
	for name, f := range map[string]fault{
		"executed": {mute: true}, "executed, and the connection breaks": {mute: true, cut: true}, "lost": {lost: true},
		"executed twice": {mute: true, twice: true}, "executed late": {out: 20 * time.Second, mute: true},
	} {
		t.Run(name, func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				p := x.client()
				l := p.must()
				p.once("export", f)
				text, err := transfer.Export(x.Context(), l, time.Hour)
				if !errors.Is(err, locker.ErrUnavailable) || text != (transfer.Text{}) {
					x.Fatalf("Export: %v, %v", text, err)
				}
				if err := l.Unlock(x.Context()); err != nil {
					x.Errorf("Unlock: %v", err)
				}
				x.nothing()
				next := x.client().must(locker.TTL(time.Minute))
				time.Sleep(30 * time.Second)
				x.sound(next)
				x.unlock(next)
				x.nothing()
			})
		})
	}
}

// A Resume that was not answered is undone, in two steps that are repeated until both are answered. What is executed
// late finds nothing, and the text is used up. Those that wait get the lock.
func TestResumeThatIsNotAnswered(t *testing.T) {
	faults := map[string]fault{
		"executed": {mute: true}, "executed, and the connection breaks": {mute: true, cut: true}, "lost": {lost: true},
		"executed twice": {mute: true, twice: true}, "executed late": {out: 20 * time.Second, mute: true},
		"answered by something in between": {refused: "ERR upstream failure"},
		"answered late":                    {back: 2 * drivers.DefaultTimeout},
	}
	for n := range 8 {
		faults[fmt.Sprint("executed at message ", n, " of the undoing")] = fault{
			out: drivers.DefaultTimeout + time.Duration(n)*oneWay, mute: true,
		}
	}
	for name, f := range faults {
		for _, undoing := range []fault{{}, {lost: true}, {mute: true}} {
			for _, waited := range []bool{false, true} {
				t.Run(fmt.Sprint(name, ", undone ", undoing, ", somebody waits: ", waited), func(t *testing.T) {
					onTestbed(t, func(x *testbed) {
						text := x.export(x.client().must(), time.Hour)
						var c *call
						if waited {
							waiter := x.client()
							waiter.warm()
							c = waiter.lock()
						}
						p := x.client()
						seen := map[string]int{}
						p.inject(func(kind string) fault {
							switch seen[kind]++; {
							case kind == "resume" && seen[kind] == 1:
								return f
							case kind == "handover" && (seen[kind] == 1 || seen[kind] == 3): // of each step, one
								return undoing
							}
							return fault{}
						})
						l, err := transfer.Resume(x.Context(), p, text, locker.TTL(10*time.Minute))
						if !errors.Is(err, locker.ErrUnavailable) || l != nil {
							x.Fatalf("Resume: %v, %v", l, err)
						}
						if waited {
							x.unlock(c.gets(time.Minute))
						} else {
							time.Sleep(40 * time.Second)
						}
						x.nothing()
						late := x.client()
						_, err = transfer.Resume(x.Context(), late, text)
						if !errors.Is(err, transfer.ErrEnded) {
							x.Errorf("Resume of a text that is used up: %v", err)
						}
						if x.settle(); late.sent("") != late.sent("resume") {
							x.Error("an attempt that was refused is undone")
						}
						next := x.client().must(locker.TTL(time.Minute))
						time.Sleep(30 * time.Second)
						x.sound(next)
						x.unlock(next)
						x.nothing()
					})
				})
			}
		}
	}
}

// A text that the server was not asked for, or would not hear of, can still be used.
func TestResumeThatWasRefusedLeavesTheText(t *testing.T) {
	for name, f := range map[string]fault{
		"no connection": {unsent: true}, "loading": {refused: "LOADING not yet"}, "out of memory": {refused: "OOM no"},
	} {
		t.Run(name, func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				text := x.export(x.client().must(), time.Hour)
				p := x.client()
				p.once("resume", f)
				if _, err := transfer.Resume(x.Context(), p, text); !errors.Is(err, locker.ErrUnavailable) {
					x.Fatalf("Resume: %v", err)
				}
				time.Sleep(time.Minute)
				x.unlock(p.resumes(text))
				x.nothing()
			})
		})
	}
}

// What is granted to a Client while it closes is given back before Close returns.
func TestResumeWhileTheClientCloses(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		text := x.export(x.client().must(), time.Hour)
		p := x.client()
		p.once("resume", fault{back: 300 * time.Millisecond})
		failed := make(chan error, 1)
		go func() {
			_, err := transfer.Resume(x.Context(), p, text)
			failed <- err
		}()
		time.Sleep(100 * time.Millisecond)
		if err := p.Close(); err != nil {
			x.Error(err)
		}
		if err := <-failed; !errors.Is(err, locker.ErrUnavailable) {
			x.Errorf("Resume: %v", err)
		}
		x.nothing()
	})
}

// So is what is granted to a caller that waits inside the driver, and which Close cannot wake.
func TestResumeInsideTheDriverWhileTheNodeCloses(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		wake := make(chan struct{})
		d := &punctualFake{&fake{answer: until(wake, ok)}, true}
		n := New(d, Options{Timeout: timeout})
		time.AfterFunc(time.Millisecond, func() {
			time.AfterFunc(time.Millisecond, func() { close(wake) })
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
		if _, err := n.Resume(context.Background(), request("a"), ".text"); !errors.Is(err, locker.ErrClosed) {
			t.Errorf("Resume: %v", err)
		}
		time.Sleep(timeout)
		if n := len(d.sent("release")); n != 2 {
			t.Errorf("%d releases, want those of the text and of the attempt", n)
		}
	})
}

// Replicas have to confirm that a lock is passed on, and that it is resumed, before that counts.
func TestPassingOnIsConfirmed(t *testing.T) {
	onReplicated(t, func(x *testbed, r *replicas, open func() *client) {
		l := open().must()
		text := x.export(l, time.Minute)
		next := open().resumes(text)
		r.are(0, 0)
		_, err := transfer.Export(x.Context(), next, time.Minute)
		notReplicated(x, err)
		x.unlock(next)
		x.nothing()
		r.are(1, oneWay)
		text = x.export(open().must(), time.Minute)
		r.are(0, 0)
		_, err = transfer.Resume(x.Context(), open(), text)
		notReplicated(x, err)
		x.nothing()
	})
}
