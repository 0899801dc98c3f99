package node

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/internal/testing/virtual"
)

func TestBusyNodeGathersCommands(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		var callers sync.WaitGroup
		const calls = 300
		for range calls {
			callers.Go(func() {
				if _, err := n.Acquire(t.Context(), request("a")); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(wake)
		callers.Wait()
		var sizes []int
		for _, b := range d.batches {
			sizes = append(sizes, len(b))
		}
		slices.Sort(sizes)
		// One for each lane, at once, and the rest in as few as may be.
		if want := []int{1, 1, 1, 1, 40, 128, 128}; !slices.Equal(sizes, want) {
			t.Errorf("%d calls of a busy node went out in batches of %d, want %d", calls, sizes, want)
		}
	})
}

// latecomers is told of calls.
type latecomers chan *Call

func (l latecomers) Late(c *Call) { l <- c }

// A caller that leaves may have its command carried out, also one that waits for a lane, or take that back.
func TestCommandGoesOnWithoutItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		late := make(latecomers, maxLanes+2)
		calls := make([]Call, maxLanes+2)
		for i := range calls {
			req := request("a")
			n.StartExtend(&calls[i], make(chan *Call, 1), i, &req)
			if calls[i].Follow(late) {
				t.Errorf("call %d is done", i)
			}
		}
		synctest.Wait()
		for i := range maxLanes + 1 {
			if got, want := calls[i].Withdraw(), i == maxLanes; got != want {
				t.Errorf("call %d was taken back: %t, want %t", i, got, want)
			}
		}
		if calls[maxLanes].Withdraw() {
			t.Error("it was taken back twice")
		}
		close(wake)
		synctest.Wait()
		told := map[int]bool{}
		for len(late) > 0 {
			told[(<-late).Tag] = true
		}
		if len(told) != maxLanes+1 || told[maxLanes] || !told[maxLanes+1] {
			t.Errorf("told of %v", told)
		}
		if last := &calls[maxLanes+1]; !last.Follow(late) || last.Withdraw() || len(late) != 0 {
			t.Error("it is not done")
		}
	})
}

// A server that forgot its scripts executes none of the commands that it refuses for that, and those of the batch whose
// script it knows. Only the former are sent again.
func TestOnlyRefusedCommandsAreSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		var callers sync.WaitGroup
		for range maxLanes {
			callers.Go(func() { _ = n.Extend(t.Context(), request("busy")) })
		}
		synctest.Wait()
		d.forgetAll()
		d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			replies, err := ok(ctx, cmds)
			for i, cmd := range cmds {
				if cmd[1] == acquireScript.sha {
					replies[i] = drivers.ServerError("NOSCRIPT No matching script. Please use EVAL.")
				}
				if cmd[1] == acquireScript.source {
					replies[i] = int64(len(cmd[6]))
				}
			}
			return replies, err
		})
		for token, f := range map[string]func(locker.Request) error{
			"r": func(r locker.Request) error { return n.Release(t.Context(), r) },
			"e": func(r locker.Request) error { return n.Extend(t.Context(), r) },
		} {
			callers.Go(func() {
				if err := f(request(token)); err != nil {
					t.Error(err)
				}
			})
		}
		for _, token := range []string{"a", "aa"} {
			callers.Go(func() {
				if g, err := n.Acquire(t.Context(), request(token)); err != nil || g.Fence != uint64(len(token)) {
					t.Errorf("%s got the answer %v, %v", token, g, err)
				}
			})
		}
		synctest.Wait()
		close(wake)
		callers.Wait()
		var sizes []int
		for _, b := range d.batches {
			sizes = append(sizes, len(b))
		}
		if !slices.Equal(sizes, []int{4, 2}) {
			t.Errorf("batches of %d, want one of 4 and one of the 2 that were refused", sizes)
		}
	})
}

// What hangs is given up after the timeout, so that lanes become free for a node that has recovered.
func TestExchangeEndsWithTheTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		d.will(hangs)
		var callers sync.WaitGroup
		for range maxLanes {
			callers.Go(func() { _ = n.Extend(t.Context(), request("a")) })
		}
		synctest.Wait()
		d.will(ok)
		start := time.Now()
		time.Sleep(time.Second)
		if err := n.Extend(t.Context(), request("b")); err != nil {
			t.Errorf("behind commands that hang: %v", err)
		}
		if took := time.Since(start); took != timeout {
			t.Errorf("the lanes became free after %v, want %v", took, timeout)
		}
		callers.Wait()
	})
}

// knock tries to acquire every millisecond for d and returns when commands were sent, counted from the beginning.
func knock(t *testing.T, d *fake, n *Node, duration time.Duration) (sent []int) {
	t.Helper()
	for ms := range int(duration / time.Millisecond) {
		before := d.trips()
		if _, err := n.Acquire(t.Context(), request("a")); !errors.Is(err, locker.ErrUnavailable) || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("after %d ms: %v must say why", ms, err)
		}
		if d.trips() > before {
			sent = append(sent, ms)
		}
		time.Sleep(time.Millisecond)
	}
	return sent
}

// A node that is down is not dialled for every command; one that is back is found soon.
func TestNodeThatIsDownRests(t *testing.T) {
	want := []int{0, 10, 30, 70, 150, 250, 350, 450} // rests of 10, 20, 40, 80, 100, 100, … ms
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		for _, again := range []string{"", " again"} {
			d.will(fails(refused))
			if got := knock(t, d, n, 500*time.Millisecond); !slices.Equal(got, want) {
				t.Errorf("down%s: sent after %d ms, want %d", again, got, want)
			}
			d.will(ok)
			time.Sleep(maxRest)
			for range 2 {
				if _, err := n.Acquire(t.Context(), request("a")); err != nil {
					t.Errorf("back%s: %v", again, err)
				}
			}
		}
	})
}

// Somebody may wait for what a release frees, so it is sent although the node is at rest. If it is answered, the node
// is back, and the rest over.
func TestReleaseEndsARest(t *testing.T) {
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
				knock(t, d, n, 200*time.Millisecond)
				d.will(ok)
				if _, err := n.Acquire(t.Context(), request("a")); err == nil {
					t.Error("the node is not at rest")
				}
				d.forgetAll()
				release(t, n)
				if got := len(d.sent(releaseScript)); got != 1 {
					t.Errorf("%d releases were sent, want 1", got)
				}
				if _, err := n.Acquire(t.Context(), request("a")); err != nil {
					t.Errorf("after an answer: %v", err)
				}
				d.will(fails(refused))
				if got := knock(t, d, n, 20*time.Millisecond); !slices.Equal(got, []int{0, 10}) {
					t.Errorf("down again: sent after %d ms; the first rest must be short again", got)
				}
				d.will(ok)
			})
		})
	}
}

// All scripts that undo count as releases, those added later, too.
func TestEveryReleaseIsSentAtRest(t *testing.T) {
	for _, s := range []*script{
		acquireScript, raiseScript, extendScript, releaseScript, enqueueScript, claimScript, handoverScript, turnScript,
		turnReleaseScript,
	} {
		if got, want := (&Call{script: s}).frees(), strings.Contains(s.source, expand("undo.lua")); got != want {
			t.Errorf("counts as a release: %v, want %v: %.60s", got, want, s.source)
		}
	}
}

// Errors that say nothing about the node, or not that it cannot be connected to, are no reason to refuse others.
func TestOnlyANodeThatCannotBeDialledRests(t *testing.T) {
	for name, err := range map[string]error{
		"pool exhausted":         drivers.NotSent(errors.New("redis: connection pool timeout")),
		"context had ended":      drivers.NotSent(context.DeadlineExceeded),
		"connection broke":       &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET},
		"closed before anything": drivers.NotSent(&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}),
		"part of it was dialled": &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}, // a cluster: others may have been sent
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake, n *Node) {
				d.will(fails(err))
				if err := n.Extend(t.Context(), request("a")); !errors.Is(err, locker.ErrUnavailable) {
					t.Error(err)
				}
				d.will(ok)
				if err := n.Extend(t.Context(), request("a")); err != nil {
					t.Errorf("the next call: %v", err)
				}
			})
		})
	}
}

// What the drivers say of a server that is down is understood.
func TestRestWithEachDriver(t *testing.T) {
	for _, name := range drivers.Names() {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			addr := l.Addr().String()
			_ = l.Close()
			d, err := drivers.Open(t.Context(), name, drivers.Config{Network: "tcp", Addr: addr})
			if err != nil {
				t.Fatal(err)
			}
			n := New(d, Options{Name: addr})
			if _, err := n.Acquire(t.Context(), request("a")); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Error(err)
			}
			n.queue.mu.Lock()
			if n.queue.rest != minRest {
				t.Errorf("rests for %v", n.queue.rest)
			}
			n.queue.mu.Unlock()
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// goroutines counts those of the caller's bubble. What the tests before have left behind ends when it likes.
func goroutines() int {
	text := make([]byte, 1<<20)
	text = text[:runtime.Stack(text, true)] // the caller comes first: "goroutine 7 [running, synctest bubble 5]:"
	own, _, _ := bytes.Cut(text, []byte("]:\n"))
	_, bubble, ok := bytes.Cut(own, []byte(", "))
	if !ok {
		panic("not in a bubble: " + string(own))
	}
	return bytes.Count(text, append(bubble, "]:\n"...))
}

// A lane that comes to run when the driver has been closed does not use it any more.
func TestClosedDriverIsLeftAlone(t *testing.T) {
	d := &fake{answer: ok}
	q := newQueue(d, timeout)
	ready := make(chan *Call, 1)
	q.cancel()
	if err := q.submit(&Call{cmd: drivers.Command{"GET", "k"}, ready: ready}); err != nil {
		t.Fatal(err)
	}
	if c := <-ready; !errors.Is(c.err, locker.ErrClosed) || !isNotSent(c.err) || d.trips() > 0 {
		t.Errorf("%v, and %d batches were sent", c.err, d.trips())
	}
}

// The room of a caller who has left without its command being sent is the next one's: nothing comes through it, also if the
// queue is being closed.
func TestWhoHasLeftIsNotTold(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		q := newQueue(&fake{answer: ok}, timeout)
		q.lanes = maxLanes // none is free
		before, ready := make(chan *Call), make(chan *Call, 1)
		c := &Call{node: &Node{queue: q}, ready: ready}
		for _, c := range []*Call{{ready: before}, c} {
			if err := q.submit(c); err != nil {
				t.Fatal(err)
			}
		}
		go q.close()
		synctest.Wait() // it tells the first one
		if wasSent, done := c.Leave(nil); wasSent || done {
			t.Errorf("a command that was not sent: sent %v, done %v", wasSent, done)
		}
		<-before
		synctest.Wait()
		if len(ready) > 0 {
			t.Error("it was told")
		}
		q.cancel()
	})
}

func TestHungNodeCostsNoGoroutinePerCall(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		before := goroutines()
		for range 1000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := n.Acquire(ctx, request("a"))
			cancel()
			if err == nil {
				t.Fatal("granted by a node that does not answer")
			}
		}
		if more := goroutines() - before; more > maxLanes+2 { // and the cleaner's
			t.Errorf("%d goroutines are left by 1000 calls", more)
		}
		n.queue.mu.Lock()
		if got := len(n.queue.pending); got > maxBatch {
			t.Errorf("%d commands still wait", got)
		}
		n.queue.mu.Unlock()
		close(wake)
		synctest.Wait()
		if got := len(d.sent(acquireScript)); got > maxLanes {
			t.Errorf("%d acquisitions were sent; those that waited must vanish with their callers", got)
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		var err error
		for range maxPending + maxLanes*maxBatch + 1 {
			if err = n.queue.submit(&Call{script: releaseScript, cmd: drivers.Command{"EVALSHA", releaseScript.sha, "0"}}); err != nil {
				break
			}
		}
		if err != errFull {
			t.Errorf("got %v, want %v", err, errFull)
		}
		close(wake)
	})
}

func TestIdleNodeHasNoGoroutine(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		before := goroutines()
		if _, err := n.Acquire(t.Context(), request("a")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(laneIdle)
		synctest.Wait()
		if after := goroutines(); after != before {
			t.Errorf("%d goroutines after a call, %d before", after, before)
		}
	})
}

// A message to oneself is no script. Whatever answers NOSCRIPT to it, alone or in a batch, is not asked again.
func TestOnlyScriptsAreSentInFull(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		wake := make(chan struct{})
		d.will(until(wake, all(drivers.ServerError("NOSCRIPT No matching script. Please use EVAL."))))
		ready := make(chan *Call, maxLanes+2)
		for range maxLanes + 2 { // the last two are sent together
			if err := n.queue.submit(&Call{cmd: drivers.Command{"PUBLISH", "c", ""}, ready: ready}); err != nil {
				t.Fatal(err)
			}
		}
		close(wake)
		for range maxLanes + 2 {
			if e, ok := (<-ready).reply.(drivers.ServerError); !ok || e.Code() != "NOSCRIPT" {
				t.Errorf("reply %v", e)
			}
		}
		if got := d.trips(); got != maxLanes+1 {
			t.Errorf("%d exchanges, want %d", got, maxLanes+1)
		}
		d.will(ok)
	})
}
