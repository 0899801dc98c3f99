package node

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
)

// turnKeys are the keys on n that belong to a queue for the turn.
func turnKeys(n *simnode.Node) (keys []string) {
	for _, key := range n.Left() {
		if strings.Contains(key, ":lock") {
			keys = append(keys, key)
		}
	}
	return keys
}

// A question that is executed only after the turn was left does not bring it back.
func TestTurnIsLeftForGood(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := simnode.New()
		var asked atomic.Bool
		n := New(s.Driver(func(_ context.Context, cmds []drivers.Command,
			execute func() []drivers.Reply) ([]drivers.Reply, error) {
			if cmds[0][0] == "EVALSHA" && !asked.Swap(true) {
				time.Sleep(50 * time.Millisecond)
			}
			return execute(), nil
		}), Options{})
		turn := n.NewTurn("k")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := turn.Ask(ctx); err == nil {
			t.Fatal("an answer")
		}
		turn.Leave(&backend.Request{Key: "k", Token: "o", TTL: time.Second}, true)
		time.Sleep(100 * time.Millisecond)
		if keys := turnKeys(s); keys != nil {
			t.Errorf("%q is left", keys)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A waiter that leaves its place releases no lock, so the waiter that has the turn is not notified.
func TestLeavingRemindsNobody(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := simnode.New()
		n := New(s.Driver(nil), Options{})
		first, second := n.NewTurn("k"), n.NewTurn("k")
		synctest.Wait() // subscribed
		<-first.News
		if st, err := first.Ask(t.Context()); err != nil || !st.Mine {
			t.Fatalf("%+v, %v", st, err)
		}
		if st, err := second.Ask(t.Context()); err != nil || st.Mine {
			t.Fatalf("%+v, %v", st, err)
		}
		second.Leave(&backend.Request{Key: "k", Token: "o", TTL: time.Second}, true)
		synctest.Wait()
		select {
		case told := <-first.News:
			t.Errorf("told: %v", told)
		default:
		}
		first.Leave(&backend.Request{Key: "k", Token: "p", TTL: time.Second}, true)
		synctest.Wait()
		if keys := turnKeys(s); keys != nil {
			t.Errorf("%q is left", keys)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Leave goes on until the node has answered, and gives the turn and the lock to the next one, in one step.
func TestTurnIsHandedOn(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := simnode.New()
		var cut atomic.Bool
		n := New(s.Driver(func(_ context.Context, _ []drivers.Command,
			execute func() []drivers.Reply) ([]drivers.Reply, error) {
			if cut.Swap(false) {
				return nil, drivers.NotSent(context.DeadlineExceeded)
			}
			return execute(), nil
		}), Options{})
		first, second := n.NewTurn("k"), n.NewTurn("k")
		synctest.Wait() // subscribed
		<-second.News
		if st, err := first.Ask(t.Context()); err != nil || !st.Mine || st.Left != 0 {
			t.Fatalf("%+v, %v", st, err)
		}
		req := &backend.Request{Key: "k", Token: "o", TTL: time.Minute}
		ready := make(chan *Call, 1)
		n.StartAcquire(new(Call), ready, 0, req, CounterOptions{Quantum: 1})
		if v := (<-ready).Vote(); !v.Granted {
			t.Fatal(v)
		}
		if st, err := first.Ask(t.Context()); err != nil || !st.Mine || st.Left != time.Minute ||
			st.Again > script.ClaimWindow*3/4 {
			t.Errorf("%+v, %v", st, err)
		}
		if st, err := second.Ask(t.Context()); err != nil || st.Mine || st.Rank != 0 || st.Left != time.Minute {
			t.Errorf("%+v, %v", st, err)
		}
		cut.Store(true)
		first.Leave(req, true)
		select {
		case told := <-second.News:
			if !told {
				t.Error("not told")
			}
		case <-time.After(200 * time.Millisecond):
			t.Error("nothing was handed on")
		}
		second.Leave(req, false)
		synctest.Wait()
		if keys := turnKeys(s); keys != nil {
			t.Errorf("%q is left", keys)
		}
		never := n.NewTurn("k")
		never.Leave(req, true)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A clean-up of an attempt notifies nobody, even if somebody waits for the lock. Others have a majority, or will try
// again without it.
func TestCleanUpTellsNobody(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		n := New(simnode.New().Driver(nil), Options{})
		waiting := n.NewTurn("k")
		synctest.Wait() // subscribed
		<-waiting.News
		req := &backend.Request{Key: "k", Token: "o", TTL: time.Minute}
		ready := make(chan *Call, 1)
		n.StartAcquire(new(Call), ready, 0, req, CounterOptions{Quantum: 1})
		if v := (<-ready).Vote(); !v.Granted {
			t.Fatal(v)
		}
		if st, err := waiting.Ask(t.Context()); err != nil || st.Left == 0 { // this marks the lock
			t.Fatalf("%+v, %v", st, err)
		}
		n.Undo(req, true)
		time.Sleep(time.Second)
		select {
		case told := <-waiting.News:
			t.Errorf("told %t", told)
		default:
		}
		if st, err := waiting.Ask(t.Context()); err != nil || st.Left != 0 {
			t.Errorf("the attempt is not undone: %+v, %v", st, err)
		}
		waiting.Leave(req, true)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Behind another library, the waiter that has the turn polls, or the first one if nobody has it.
func TestTurnPollsBehindAnotherLibrary(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := simnode.New()
		n := New(s.Driver(nil), Options{})
		first, second := n.NewTurn("k"), n.NewTurn("k")
		<-first.News // subscribed
		<-second.News
		ask := func(turn *Turn, mine, polls bool) {
			t.Helper()
			st, err := turn.Ask(t.Context())
			least, most := script.ClaimWindow/2, script.ClaimWindow
			if polls {
				least, most = foreignPoll/2, foreignPoll
			}
			if err != nil || st.Mine != mine || st.Again < least || st.Again > most {
				t.Errorf("%+v, %v; its turn: want %v, polls: want %v", st, err, mine, polls)
			}
		}
		theirs := func(ttl time.Duration) {
			t.Helper()
			if !s.Take("k", "theirs", ttl) {
				t.Fatal("the lock is not free")
			}
		}
		theirs(time.Hour)
		ask(first, false, true)
		ask(second, false, false)
		s.Delete("k")
		ask(first, true, false)
		theirs(time.Hour)
		ask(first, true, true)
		ask(second, false, false)
		first.Leave(&backend.Request{Key: "k", Token: "o", TTL: time.Second}, true)
		synctest.Wait()
		ask(second, false, true)
		s.Delete("k")
		theirs(10 * time.Millisecond)
		if st, err := second.Ask(t.Context()); err != nil || st.Again > 11*time.Millisecond {
			t.Errorf("%+v, %v, when the lock ends in 10 ms", st, err)
		}
		second.Leave(&backend.Request{Key: "k", Token: "p", TTL: time.Second}, true)
		time.Sleep(time.Second)
		if keys := turnKeys(s); keys != nil {
			t.Errorf("%q is left", keys)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A waiter that cannot be notified looks often while the queue moves, and less and less while it does not.
func TestUntoldTurnsLook(t *testing.T) {
	turn := &Turn{}
	for range 3 {
		if d := turn.untold(0); d > 4*nearPoll {
			t.Errorf("%v", d)
		}
	}
	for range 10 {
		turn.untold(0)
	}
	if d := turn.untold(0); d < untoldPoll/2 || d > untoldPoll {
		t.Errorf("%v", d)
	}
	if d := turn.untold(3); d > 4*nearPoll {
		t.Errorf("%v, when the queue has moved", d)
	}
}
