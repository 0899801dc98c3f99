package election_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/memory"
)

// Five candidates lead for a second each time. There is always a leader, one at a time, and all of them get a turn.
func TestLeadersTakeTurns(t *testing.T) {
	withHarness(t, func(o *harness) {
		term := func(ctx context.Context) error {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			return nil
		}
		var cs []*candidate
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			cs = append(cs, o.run(name, term))
		}
		time.Sleep(20*time.Second - 1)
		o.want("20 s have 20 terms", len(o.is("elected", "")) == 20)
		for _, c := range cs {
			o.want(c.name+" leads each fifth time", len(o.is("elected", c.name)) == 4)
		}
		o.want("a leader that returned has no cause", o.last("demoted", "a").cause == nil)
		o.ends(cs...)
		o.want("nothing went wrong", len(o.reported()) == 0)
	})
}

// A leader resigns. The next one leads at that moment, and the one that resigned is the last to lead again.
func TestResignHandsOnAtOnce(t *testing.T) {
	withHarness(t, func(o *harness) {
		a, b := o.run("a", nil), o.run("b", nil)
		time.Sleep(time.Minute)
		term, leads := a.Leading()
		o.want("a leads", leads && term.Number > 0 && term.Lease.Fence() == term.Number)
		if err := a.Resign(o.Context()); err != nil {
			o.Error(err)
		}
		synctest.Wait()
		o.want("b leads at once", o.last("elected", "b").at == time.Minute)
		_, still := a.Leading()
		_, now := b.Leading()
		o.want("Leading says who", !still && now)
		o.want("the context and OnDemoted say why", errors.Is(o.last("stopping", "a").cause, election.ErrResigned) &&
			errors.Is(o.last("demoted", "a").cause, election.ErrResigned))
		time.Sleep(time.Second)
		if err := b.Resign(o.Context()); err != nil {
			o.Error(err)
		}
		synctest.Wait()
		o.want("a leads again", len(o.is("elected", "a")) == 2)
		o.ends(a, b)
		o.want("nothing went wrong", len(o.reported()) == 0)
	})
}

// A candidate that waits has nothing to resign from, and keeps its place.
func TestResignWhileCampaigning(t *testing.T) {
	withHarness(t, func(o *harness) {
		a, b, c := o.run("a", nil), o.run("b", nil), o.run("c", nil)
		if err := b.Resign(o.Context()); err != nil {
			o.Error(err)
		}
		o.ends(a)
		synctest.Wait()
		o.want("b leads", len(o.is("elected", "b")) == 1)
		o.ends(b, c)
	})
}

// Resign returns when its context ends, although OnElected has not stopped yet.
func TestResignIsBoundedByItsContext(t *testing.T) {
	withHarness(t, func(o *harness) {
		a := o.run("a", func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(2 * time.Second)
			return nil
		})
		ctx, cancel := context.WithTimeout(o.Context(), time.Second)
		defer cancel()
		if err := a.Resign(ctx); !errors.Is(err, context.DeadlineExceeded) {
			o.Errorf("Resign: %v", err)
		}
		_, leads := a.Leading()
		o.want("a does not count as leader while it stops", !leads)
		o.ends(a)
		o.want("the term is over", len(o.is("demoted", "a")) == 1)
	})
}

// When the context of Run ends, the leader stops, and the next one leads at that moment.
func TestEndOfRunHandsOnAtOnce(t *testing.T) {
	withHarness(t, func(o *harness) {
		why := errors.New("rolling restart")
		ctx, cancel := context.WithCancelCause(o.Context())
		client := locker.NewClient(o.store)
		defer client.Close()
		ended := make(chan error, 1)
		var cause error
		go func() {
			ended <- election.Run(ctx, client, key, election.Config{
				OnElected: func(ctx context.Context, _ election.Term) error {
					<-ctx.Done()
					time.Sleep(500 * time.Millisecond) // to finish what it did
					return ctx.Err()
				},
				OnDemoted: func(_ election.Term, err error) { cause = err },
				OnError:   func(err error) { o.Error(err) },
			})
		}()
		synctest.Wait()
		b := o.run("b", nil)
		time.Sleep(time.Minute)
		cancel(why)
		if err := <-ended; err != nil {
			o.Errorf("Run: %v", err)
		}
		synctest.Wait()
		o.want("b leads when a has stopped", o.last("elected", "b").at == time.Minute+500*time.Millisecond)
		o.want("the cause is that of the context", errors.Is(cause, why))
		o.ends(b)
	})
}

// The store fails at once, and a candidate tries again and again, with pauses that grow. Then the store comes back.
func TestCampaignsAreRepeatedWithPauses(t *testing.T) {
	withHarness(t, func(o *harness) {
		o.store.breaks(locker.ErrUnavailable)
		a := o.run("a", nil)
		time.Sleep(time.Minute)
		asked := o.store.attempts()
		o.want("a minute has 30 to 70 attempts", len(asked) >= 30 && len(asked) <= 70)
		o.want("the first pause is short", asked[1].Sub(asked[0]) <= 200*time.Millisecond)
		for i, at := range asked[1:] {
			pause := at.Sub(asked[i])
			o.want("pauses of 0.1 to 2 s", pause >= 100*time.Millisecond && pause <= 2*time.Second)
		}
		o.want("each failure is reported", len(o.reported()) == len(asked))
		o.store.breaks(nil)
		time.Sleep(2 * time.Second)
		o.want("a leads", len(o.is("elected", "a")) == 1)
		time.Sleep(time.Second)
		if err := a.Resign(o.Context()); err != nil {
			o.Error(err)
		}
		time.Sleep(200 * time.Millisecond)
		o.want("after a term, the pause is short again", len(o.is("elected", "a")) == 2)
		o.ends(a)
	})
}

// A leader whose work fails at once does not burden the store, and its errors are reported.
func TestTermsThatFailAtOnceArePaced(t *testing.T) {
	withHarness(t, func(o *harness) {
		broken := errors.New("no such table")
		a := o.run("a", func(context.Context) error { return broken })
		time.Sleep(time.Minute)
		n := len(o.is("elected", "a"))
		o.want("a minute has 30 to 70 terms", n >= 30 && n <= 70)
		o.want("each failure is reported", len(o.reported()) == n && errors.Is(o.reported()[0], broken))
		o.want("OnDemoted has the error", errors.Is(o.last("demoted", "a").cause, broken))
		o.ends(a)
	})
}

func TestRunReturnsWhatCannotBeHelped(t *testing.T) {
	work := func(ctx context.Context, _ election.Term) error { <-ctx.Done(); return nil }
	withHarness(t, func(o *harness) {
		l := memory.New()
		defer l.Close()
		for what, c := range map[string]election.Config{
			"no OnElected":      {},
			"a bad identity":    {OnElected: work, Identity: "a|b"},
			"a bad option":      {OnElected: work, Options: []locker.Option{locker.TTL(1)}},
			"a negative time":   {OnElected: work, StopTime: -1},
			"a negative period": {OnElected: work, HealthInterval: -1},
		} {
			if err := election.Run(o.Context(), l, key, c); !errors.Is(err, locker.ErrInvalid) {
				o.Errorf("%s: %v", what, err)
			}
		}
		o.store.breaks(locker.ErrForeignKey)
		a := o.run("a", nil)
		if err := <-a.ended; !errors.Is(err, locker.ErrForeignKey) {
			o.Errorf("foreign key: %v", err)
		}
		o.store.breaks(nil)
		b := o.run("b", nil)
		if err := b.Run(o.Context()); !errors.Is(err, locker.ErrInvalid) {
			o.Errorf("the second Run: %v", err)
		}
		_ = b.client.Close()
		if err := <-b.ended; !errors.Is(err, locker.ErrClosed) {
			o.Errorf("closed: %v", err)
		}
		o.want("the loss was reported", errors.Is(o.last("demoted", "b").cause, locker.ErrLost))
	})
}

// An error of OnElected that looks like one of a lock does not end Run.
func TestErrorsOfTheWorkDoNotEndRun(t *testing.T) {
	withHarness(t, func(o *harness) {
		a := o.run("a", func(context.Context) error { return locker.ErrInvalid })
		time.Sleep(time.Minute)
		o.want("a goes on", len(o.is("elected", "a")) > 10)
		o.ends(a)
	})
}

// OnOverrun has returned when a panic of OnElected reaches the caller of Run.
func TestPanicWaitsForOnOverrun(t *testing.T) {
	withHarness(t, func(o *harness) {
		l := locker.NewClient(o.store)
		defer l.Close()
		ctx, cancel := context.WithCancel(o.Context())
		var over atomic.Bool
		func() {
			defer func() {
				r := recover()
				o.want("Run panics, and not before OnOverrun has returned", r != nil && over.Load())
			}()
			_ = election.Run(ctx, l, key, election.Config{
				OnElected: func(ctx context.Context, _ election.Term) error {
					cancel()
					time.Sleep(time.Minute)
					panic("oops")
				},
				OnOverrun: func(error) {
					time.Sleep(time.Hour)
					over.Store(true)
				},
				OnError: func(error) {},
			})
		}()
	})
}

// A panic of OnElected reaches the caller of Run, and the lock is free.
func TestPanicReleases(t *testing.T) {
	withHarness(t, func(o *harness) {
		l := locker.NewClient(o.store)
		defer l.Close()
		func() {
			defer func() {
				if r, _ := recover().(string); !strings.Contains(r, "oops") {
					o.Errorf("recovered %q", r)
				}
			}()
			_ = election.Run(o.Context(), l, key, election.Config{
				OnElected: func(context.Context, election.Term) error { panic("oops") },
			})
		}()
		a := o.run("a", nil)
		o.want("the next one leads at once", o.last("elected", "a").at == 0)
		o.ends(a)
	})
}
