package locker

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/internal/testing/virtual"
)

// entered is what came of one call of enter.
type entered struct {
	line *line
	err  error
}

// arrive comes to the gate and returns when it is through, or waits.
func arrive(ctx context.Context, g *gate, closing <-chan struct{}) <-chan entered {
	result := make(chan entered, 1)
	go func() {
		l, err := g.enter(ctx, closing, "k", func() {})
		result <- entered{l, err}
	}()
	synctest.Wait()
	return result
}

func through(t *testing.T, who string, result <-chan entered) *line {
	t.Helper()
	synctest.Wait()
	select {
	case e := <-result:
		if e.err != nil {
			t.Fatalf("%s: %v", who, e.err)
		}
		return e.line
	default:
		t.Fatalf("%s is not through", who)
		return nil
	}
}

func outside(t *testing.T, who string, result <-chan entered) {
	t.Helper()
	synctest.Wait()
	if len(result) > 0 {
		t.Fatalf("%s is through: %v", who, <-result)
	}
}

func TestGateLetsOneThroughAtATimeInOrder(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var g gate
		var results []<-chan entered
		for range 10 {
			results = append(results, arrive(t.Context(), &g, nil))
		}
		for i, r := range results {
			l := through(t, "the first", r)
			for _, later := range results[i+1:] {
				outside(t, "another", later)
			}
			l.leave(i%2 == 0)
		}
		if len(g.lines) > 0 {
			t.Error("the line is kept for nobody")
		}
	})
}

func TestGateExcludes(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var g gate
		var inside atomic.Int32
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				for n := range 20 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*n)*time.Millisecond)
					l, err := g.enter(ctx, nil, "k", func() {})
					if err == nil {
						if inside.Add(1) > 1 {
							t.Error("two are through")
						}
						time.Sleep(time.Millisecond)
						inside.Add(-1)
						l.leave(false)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		if len(g.lines) > 0 {
			t.Error("the line is kept for nobody")
		}
	})
}

// A turn that comes when the caller is about to leave, but has not yet, goes to the next one.
func TestTurnIsNotLostWhenTheCallerLeaves(t *testing.T) {
	for _, what := range []string{"context", "closing"} {
		for _, turnFirst := range []bool{true, false} {
			virtual.Test(t, func(t *testing.T) {
				var g gate
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				closing := make(chan struct{})
				first := through(t, "the first", arrive(t.Context(), &g, nil))
				leaving := arrive(ctx, &g, closing)
				next := arrive(t.Context(), &g, nil)
				end := cancel
				if what == "closing" {
					end = func() { close(closing) }
				}
				// What comes first wakes the caller; that it finds the other too, when it has the mutex, is what this is about.
				g.mu.Lock()
				if turnFirst {
					first.next()
					end()
				} else {
					end()
					first.next()
				}
				g.mu.Unlock()
				e := <-leaving
				if (e.err == nil) != turnFirst {
					t.Errorf("%s, turn first %v: the caller got the error %v", what, turnFirst, e.err)
				}
				if e.err == nil {
					outside(t, "the next one", next)
					e.line.leave(false)
				}
				through(t, "the next one", next).leave(false)
				if len(g.lines) > 0 {
					t.Error("the line is kept for nobody")
				}
			})
		}
	}
}

// Whoever leaves from the middle of the line is not missed.
func TestGateForgetsWhoLeaves(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var g gate
		first := through(t, "the first", arrive(t.Context(), &g, nil))
		ctx, cancel := context.WithCancel(t.Context())
		leaving, next := arrive(ctx, &g, nil), arrive(t.Context(), &g, nil)
		cancel()
		if e := <-leaving; !errors.Is(e.err, errBehind) || errors.Is(e.err, ErrHeld) {
			t.Errorf("nothing was known of the lock, and the error is %v", e.err)
		}
		first.leave(false)
		through(t, "the next one", next).leave(false)
	})
}

// Those who waited for their turn are told what the one ahead of them has seen.
func TestGateTellsWhatWasSeen(t *testing.T) {
	for what, f := range map[string]func(l *line){
		"held": func(l *line) { l.saw(&HeldError{Remaining: time.Second}, nil) }, "acquired by this client": func(l *line) { l.leave(true) },
	} {
		t.Run(what, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				var g gate
				first := through(t, "the first", arrive(t.Context(), &g, nil))
				second := arrive(t.Context(), &g, nil)
				ctx, cancel := context.WithCancel(t.Context())
				third := arrive(ctx, &g, nil)
				f(first)
				cancel()
				if e := <-third; !errors.Is(e.err, ErrHeld) {
					t.Errorf("the error is %v", e.err)
				}
				if what == "held" {
					first.leave(false)
				}
				through(t, "the second", second).leave(false)
			})
		})
	}
}

func TestGateOfOtherKeys(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var g gate
		for _, key := range []string{"a", "b"} {
			if _, err := g.enter(t.Context(), nil, key, func() { t.Error("waits") }); err != nil {
				t.Error(err)
			}
		}
	})
}

// A call that waits for its turn among the callers of its Client, and then for another owner, says so once.
func TestTraceOfACallThatWaitsTwice(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		store := queueingStore{release: make(chan struct{})}
		c := NewClient(store)
		first := make(chan struct{})
		go func() {
			defer close(first)
			if _, err := c.Lock(t.Context(), "k", NoRenewal()); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait() // the first is at the store
		var seen []string
		ctx := WithTrace(t.Context(), &Trace{
			Waiting: func(Waiting) { seen = append(seen, "waiting") },
			Woken:   func(w Wake) { seen = append(seen, string(w.Reason)) },
		})
		second := make(chan struct{})
		go func() {
			defer close(second)
			if _, err := c.Lock(ctx, "k", NoRenewal()); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait() // it waits behind the first
		store.release <- struct{}{}
		<-first
		store.release <- struct{}{}
		<-second
		if got := strings.Join(seen, ", "); got != "waiting, turn" {
			t.Errorf("seen: %s", got)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// queueingStore grants when release says so.
type queueingStore struct{ release chan struct{} }

func (s queueingStore) Queue(_ context.Context, req Request) (Grant, error) {
	req.Waiting(time.Second)
	<-s.release
	return Grant{}, nil
}

func (queueingStore) Acquire(context.Context, Request) (Grant, error) { return Grant{}, ErrHeld }
func (queueingStore) Extend(context.Context, Request) error           { return nil }
func (queueingStore) Release(context.Context, Request) error          { return nil }
