package node

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/pipeline"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
)

// Each step of Close waits for something that may still have to be undone. In each case a clean-up becomes due at the
// last moment at which it still can be sent, and has been answered when Close returns.
func TestCloseUndoesWhatIsStillDue(t *testing.T) {
	tests := map[string]struct {
		// due brings about something to undo. What it returns, if anything, goes on while Close is under way.
		due  func(t *testing.T, d *fake, n *Node) (meanwhile func())
		want []string // life of the tombstones of the releases that are answered while the node is closed
	}{
		"a call that has not left": {func(_ *testing.T, d *fake, n *Node) func() {
			n.inFlight.Enter() // as each call does
			return func() {
				for !d.isClosed() && n.inFlight.over.Load() == nil { // until Close waits for this call, or has failed to
					runtime.Gosched()
				}
				req := request("a")
				n.Undo(&req, false)
				n.inFlight.Leave()
			}
		}, []string{"70000"}},
		"a grant that comes late": {func(t *testing.T, d *fake, n *Node) func() {
			wake := make(chan struct{})
			d.will(until(wake, ok))
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				defer close(left)
				_, _ = n.Acquire(ctx, request("a"))
			}()
			synctest.Wait()
			d.will(ok)
			cancel()
			<-left
			synctest.Wait() // its release has been answered already
			d.forgetAll()
			return func() {
				synctest.Wait()
				close(wake)
			}
		}, []string{"0"}},
		"a clean-up that failed before": {func(t *testing.T, d *fake, n *Node) func() {
			d.will(fails(io.EOF))
			_, _ = n.Acquire(t.Context(), request("a"))
			time.Sleep(10 * time.Second) // the pauses between tries are long by now
			synctest.Wait()
			d.forgetAll()
			return nil
		}, []string{"70000"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				d := &fake{answer: ok}
				n := New(d, Options{Name: "n1", Timeout: timeout})
				meanwhile := tt.due(t, d, n)
				var answered []string
				d.will(slowly(time.Second, func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
					for _, cmd := range cmds {
						if wire.Releases(cmd) {
							answered = append(answered, tombstone(cmd))
						}
					}
					return ok(ctx, cmds)
				}))
				closed := make(chan error, 1)
				go func() { closed <- n.Close() }()
				if meanwhile != nil {
					meanwhile()
				}
				if err := <-closed; err != nil {
					t.Error(err)
				}
				if !slices.Equal(answered, tt.want) {
					t.Errorf("releases with tombstones for %q ms were answered, want %q", answered, tt.want)
				}
			})
		})
	}
}

// While Close waits for what is under way, and after it, nothing new is sent.
func TestNothingIsSentOnceClosed(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		wake := make(chan struct{})
		d := &fake{answer: until(wake, ok)}
		n := New(d, Options{Name: "n1", Timeout: timeout})
		go func() { _, _ = n.Acquire(context.Background(), request("under way")) }()
		synctest.Wait()
		d.will(ok)
		closed := make(chan error)
		go func() { closed <- n.Close() }()
		synctest.Wait()
		d.forgetAll()
		try := func(when string) {
			_, err := n.Acquire(t.Context(), request("a"))
			for call, err := range map[string]error{
				"acquire": err, "extend": n.Extend(t.Context(), request("a")), "release": n.Release(t.Context(), request("a")),
			} {
				if !errors.Is(err, locker.ErrClosed) {
					t.Errorf("%s, %s: %v", when, call, err)
				}
			}
			if got := len(d.sent("acquire")) + len(d.sent("extend")); got > 0 {
				t.Errorf("%s: %d commands were sent", when, got)
			}
		}
		try("while it is closed")
		time.Sleep(timeout)
		if err := <-closed; err == nil {
			t.Error("Close is silent about a command in flight")
		}
		try("after that")
		close(wake) // granted, and to be undone: too late
		synctest.Wait()
		if d.after > 0 {
			t.Errorf("the driver was used %d times after it was closed", d.after)
		}
	})
}

func TestClose(t *testing.T) {
	t.Run("interrupts callers and undoes their attempts", func(t *testing.T) {
		virtual.Test(t, func(t *testing.T) {
			wake := make(chan struct{})
			d := &fake{answer: until(wake, ok)}
			n := New(d, Options{Name: "n1", Timeout: timeout})
			result := make(chan error)
			go func() {
				_, err := n.Acquire(context.Background(), request("a"))
				result <- err
			}()
			synctest.Wait()
			d.will(ok)
			closed := make(chan error)
			go func() { closed <- n.Close() }()
			synctest.Wait()
			select {
			case err := <-result:
				if !errors.Is(err, locker.ErrClosed) {
					t.Error(err)
				}
			default:
				t.Error("Close did not wake the caller")
			}
			if n := len(d.sent("release")); n != 1 {
				t.Errorf("%d releases, want 1", n)
			}
			close(wake)
			if err := <-closed; err != nil {
				t.Error(err)
			}
			if _, err := n.Acquire(t.Context(), request("b")); !errors.Is(err, locker.ErrClosed) {
				t.Error(err)
			}
		})
	})
	t.Run("wakes callers that wait for replicas", func(t *testing.T) {
		virtual.Test(t, func(t *testing.T) {
			wake := make(chan struct{})
			d := &fake{answer: until(wake, ok)}
			n := New(d, Options{Timeout: timeout, Replicas: pipeline.Replicas{Want: 1, Timeout: time.Second}})
			start := time.Now()
			go func() {
				synctest.Wait()
				time.AfterFunc(time.Second, func() { close(wake) })
				_ = n.Close()
			}()
			if _, err := n.Acquire(context.Background(), request("a")); !errors.Is(err, locker.ErrClosed) {
				t.Error(err)
			}
			if d := time.Since(start); d != 0 {
				t.Errorf("the caller waited for %v", d)
			}
			<-wake
		})
	})
	t.Run("is bounded when the server hangs", func(t *testing.T) {
		virtual.Test(t, func(t *testing.T) {
			d := &fake{answer: hangs}
			n := New(d, Options{Name: "n1", Timeout: timeout})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _ = n.Acquire(ctx, request("a"))
			start := time.Now()
			if err := n.Close(); err != nil {
				t.Error(err)
			}
			if d := time.Since(start); d > timeout {
				t.Errorf("took %v", d)
			}
		})
	})
	t.Run("is bounded when the client ignores contexts", func(t *testing.T) {
		virtual.Test(t, func(t *testing.T) {
			wake := make(chan struct{})
			d := &fake{answer: until(wake, ok)}
			n := New(d, Options{Name: "n1", Timeout: timeout})
			_, _ = n.Acquire(t.Context(), request("a"))
			start := time.Now()
			if err := n.Close(); err == nil {
				t.Error("Close is silent about a command in flight")
			}
			if d := time.Since(start); d > timeout+time.Second {
				t.Errorf("took %v", d)
			}
			close(wake)
		})
	})
}

// A grant that comes when Close has begun is given back before the driver is closed: the Client's release may come
// after that.
func TestCloseUndoesWhatIsGrantedMeanwhile(t *testing.T) {
	for name, call := range map[string]func(n *Node) (backend.Grant, error){
		"acquire": func(n *Node) (backend.Grant, error) { return n.Acquire(context.Background(), request("a")) },
		"queue": func(n *Node) (backend.Grant, error) {
			return n.Queue(context.Background(), request("a"), waiting(context.Background()))
		},
	} {
		for range 20 { // whether the Client's release would be in time is luck
			virtual.Test(t, func(t *testing.T) {
				d := &punctualFake{&fake{}, true}
				n := New(d, Options{Timeout: timeout})
				called := make(chan struct{}, 2) // for the attempt and its release
				d.will(func(_ context.Context, _ []drivers.Command) ([]drivers.Reply, error) {
					called <- struct{}{}
					<-n.closing
					return []drivers.Reply{int64(1)}, nil
				})
				closed := make(chan struct{})
				go func() {
					<-called
					if err := n.Close(); err != nil {
						t.Error(err)
					}
					close(closed)
				}()
				g, err := call(n)
				if err == nil { // as the Client does
					req := request("a")
					req.Fence, req.Private = g.Fence, g.Private
					err = n.Release(t.Context(), req)
				}
				<-closed
				if !errors.Is(err, locker.ErrClosed) || len(d.sent("release")) == 0 || d.after > 0 {
					t.Errorf("%s: %v; %d releases were sent, %d batches after the driver was closed",
						name, err, len(d.sent("release")), d.after)
				}
			})
		}
	}
}
