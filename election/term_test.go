package election_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/middleware/logging"
	"github.com/golocker/locker/middleware/retry"
)

// The store fails until the lease is lost. The context of the leader ends before the next one leads, and both campaign
// on.
func TestLostLease(t *testing.T) {
	withHarness(t, func(o *harness) {
		a, b := o.run("a", nil), o.run("b", nil)
		time.Sleep(time.Minute)
		o.store.breaks(locker.ErrUnavailable)
		time.Sleep(ttl + time.Second)
		o.want("a has stopped", errors.Is(o.last("stopping", "a").cause, locker.ErrLost))
		o.want("OnDemoted knows", errors.Is(o.last("demoted", "a").cause, locker.ErrLost))
		o.want("b leads", len(o.is("elected", "b")) == 1) // its request was at the store already
		o.want("the loss was reported", errors.Is(o.reported()[0], locker.ErrLost))
		o.want("once", !errors.Is(o.reported()[1], locker.ErrLost))
		o.store.breaks(nil)
		time.Sleep(10 * time.Second)
		o.ends(b)
		synctest.Wait()
		o.want("a leads again", len(o.is("elected", "a")) == 2)
		o.ends(a)
	})
}

// An operator takes the lock away. The leader stops at its next renewal.
func TestForcedRelease(t *testing.T) {
	withHarness(t, func(o *harness) {
		a := o.run("a", nil)
		if _, err := a.client.ForceRelease(o.Context(), key, ""); err != nil {
			o.Fatal(err)
		}
		time.Sleep(ttl)
		o.want("a has stopped", errors.Is(o.is("demoted", "a")[0].cause, locker.ErrLost))
		o.want("a leads again", len(o.is("elected", "a")) == 2)
		o.ends(a)
	})
}

// An operator gives the lock to somebody else, and the leader returns before its next renewal. The release notices the
// loss, and OnDemoted is told.
func TestLossThatTheReleaseNotices(t *testing.T) {
	withHarness(t, func(o *harness) {
		free := make(chan struct{})
		a := o.run("a", func(context.Context) error { <-free; return nil })
		if _, err := a.client.ForceRelease(o.Context(), key, ""); err != nil {
			o.Fatal(err)
		}
		if _, err := o.store.Acquire(o.Context(), backend.Request{Key: key, Token: "x", TTL: time.Hour}); err != nil {
			o.Fatal(err)
		}
		close(free)
		synctest.Wait()
		o.want("OnDemoted knows", errors.Is(o.last("demoted", "a").cause, locker.ErrLost))
		o.want("the loss was reported once", len(o.reported()) == 1 && errors.Is(o.reported()[0], locker.ErrLost))
		o.ends(a)
	})
}

// A leader that could never go on after it is elected is not elected again and again.
func TestStopTimeThatTheTTLHasNoRoomFor(t *testing.T) {
	withHarness(t, func(o *harness) {
		for _, stop := range []time.Duration{ttl/2 + 1, ttl, 20 * time.Second} {
			l := locker.NewClient(o.store)
			c := election.Config{
				OnElected: func(context.Context, election.Term) error { o.Error("the candidate leads"); return nil },
				StopTime:  stop,
			}
			wrapped := locker.Wrap(l, locker.Defaults(locker.TTL(ttl)), retry.New(), logging.New(slog.New(slog.DiscardHandler)))
			err := election.Run(o.Context(), wrapped, key, c)
			if !errors.Is(err, locker.ErrInvalid) || !strings.Contains(err.Error(), "half of the TTL of 3s") {
				o.Errorf("Run with a StopTime of %v: %v", stop, err)
			}
			if err := l.Close(); err != nil {
				o.Error(err)
			}
		}
		a := o.run("a", nil, func(c *election.Config) { c.StopTime = ttl / 2 })
		o.want("half of the TTL is enough", o.last("elected", "a").at == 0)
		time.Sleep(time.Minute)
		o.want("the term goes on", len(o.is("demoted", "a")) == 0)
		o.ends(a)
	})
}

// A leader that needs a second to stop gets it, if renewals fail.
func TestStopTime(t *testing.T) {
	withHarness(t, func(o *harness) {
		var left atomic.Int64
		work := func(ctx context.Context) error {
			lease, _ := locker.LeaseFrom(ctx)
			<-ctx.Done()
			left.Store(int64(time.Until(lease.Until())))
			return nil
		}
		a := o.run("a", work, func(c *election.Config) { c.StopTime = time.Second })
		time.Sleep(time.Minute)
		_, leads := a.Leading()
		o.want("a renewed lease goes on", leads && len(o.is("elected", "a")) == 1)
		o.store.breaks(locker.ErrUnavailable)
		time.Sleep(ttl)
		o.want("there was a second left", time.Duration(left.Load()) == time.Second)
		o.want("the cause says so", errors.Is(o.last("demoted", "a").cause, election.ErrUnrenewed))
		o.want("it was reported", errors.Is(o.reported()[0], election.ErrUnrenewed))
		o.ends(a)
	})
}

// The work of a leader hangs when its lease is lost. That is reported in time, and it is not called a second time
// beside itself.
func TestOverrunAfterLoss(t *testing.T) {
	withHarness(t, func(o *harness) {
		free := make(chan struct{})
		hangs := func(context.Context) error { <-free; return nil }
		a := o.run("a", hangs, func(c *election.Config) {
			c.OnOverrun = func(err error) { o.saw("a", "late", 0, err) }
		})
		b := o.run("b", nil)
		o.store.breaks(locker.ErrUnavailable)
		time.Sleep(ttl)
		o.store.breaks(nil)
		time.Sleep(time.Second)
		overrun := o.last("late", "a")
		o.want("the overrun was reported", errors.Is(overrun.cause, election.ErrOverrun) &&
			errors.Is(overrun.cause, locker.ErrLost) && errors.Is(o.reported()[0], election.ErrOverrun))
		o.want("it says what that means", strings.HasSuffix(overrun.cause.Error(), "; another candidate may lead"))
		late := overrun.at - o.last("stopping", "a").at
		o.want("within the grace", late > 0 && late <= 51*time.Millisecond)
		o.want("b leads", len(o.is("elected", "b")) == 1)
		time.Sleep(time.Minute)
		o.want("a is still in its term", len(o.is("elected", "a")) == 1 && len(o.is("demoted", "a")) == 0)
		close(free)
		synctest.Wait()
		o.want("a is demoted", errors.Is(o.last("demoted", "a").cause, locker.ErrLost))
		o.ends(a, b)
	})
}

// The work of a leader hangs when it should resign. Nobody else leads as long as it may be working.
func TestOverrunAfterResign(t *testing.T) {
	withHarness(t, func(o *harness) {
		free := make(chan struct{})
		hangs := func(context.Context) error { <-free; return nil }
		a := o.run("a", hangs, func(c *election.Config) {
			c.OnOverrun = func(err error) { o.saw("a", "late", 0, err) }
		})
		b := o.run("b", nil)
		a.stop()
		time.Sleep(ttl)
		o.want("the overrun was reported once", len(o.is("late", "a")) == 1 && len(o.reported()) == 1)
		said := o.last("late", "a").cause.Error()
		o.want("it says what that means", strings.HasSuffix(said, "; the lock is still held"))
		time.Sleep(time.Minute)
		o.want("still once", len(o.is("late", "a")) == 1)
		o.want("nobody else leads", len(o.is("elected", "b")) == 0)
		close(free)
		synctest.Wait()
		o.want("b leads", len(o.is("elected", "b")) == 1)
		o.ends(a, b)
	})
}

// The lock is released when OnElected has returned, however long the other functions take, and these may call Resign.
func TestReleaseWaitsForTheWorkOnly(t *testing.T) {
	withHarness(t, func(o *harness) {
		free, begun := make(chan struct{}), make(chan *candidate, 1)
		hangs := func(context.Context) error { <-free; return nil }
		slow := func() {
			a := <-begun
			begun <- a
			if err := a.Resign(o.Context()); err != nil {
				o.Errorf("Resign: %v", err)
			}
			time.Sleep(time.Hour)
		}
		a := o.run("a", hangs, func(c *election.Config) {
			c.OnOverrun = func(error) { slow() }
			told := c.OnDemoted
			c.OnDemoted = func(term election.Term, cause error) {
				told(term, cause)
				slow()
			}
		})
		begun <- a
		b := o.run("b", nil)
		resigned := make(chan error)
		go func() { resigned <- a.Resign(o.Context()) }()
		time.Sleep(2 * ttl)
		o.want("a works still", len(o.is("elected", "b")) == 0)
		close(free)
		if err := <-resigned; err != nil {
			o.Errorf("Resign: %v", err)
		}
		synctest.Wait()
		o.want("b leads at once", o.last("elected", "b").at == 2*ttl)
		time.Sleep(time.Hour)
		synctest.Wait()
		o.want("OnDemoted follows OnOverrun", o.last("demoted", "a").at == 2*ttl+time.Hour)
		o.ends(a, b)
	})
}

// A leader may release the lock itself, before its term ends or after. Nothing is wrong then.
func TestUnlockEndsTheTerm(t *testing.T) {
	withHarness(t, func(o *harness) {
		var first atomic.Bool
		a := o.run("a", func(ctx context.Context) error {
			lease, _ := locker.LeaseFrom(ctx)
			if first.CompareAndSwap(false, true) {
				time.Sleep(time.Second)
			} else {
				<-ctx.Done()
			}
			return lease.Unlock(context.WithoutCancel(ctx))
		})
		time.Sleep(2 * time.Second)
		demoted := o.last("demoted", "a")
		o.want("its own release", demoted.at == time.Second && errors.Is(demoted.cause, locker.ErrUnlocked))
		o.want("it leads again", len(o.is("elected", "a")) == 2)
		if err := a.Resign(o.Context()); err != nil {
			o.Errorf("Resign: %v", err)
		}
		o.ends(a)
		o.want("nothing went wrong", len(o.reported()) == 0)
	})
}

// A leader that is in time is not reported, even if it needs nearly all of the time.
func TestNoOverrunInTime(t *testing.T) {
	withHarness(t, func(o *harness) {
		slow := func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(ttl / 2)
			return ctx.Err()
		}
		a := o.run("a", slow, func(c *election.Config) { c.OnOverrun = func(err error) { o.Error(err) } })
		o.ends(a)
		o.want("nothing went wrong", len(o.reported()) == 0)
	})
}

// An error of the work, after its context has ended, is not lost.
func TestErrorAfterTheEnd(t *testing.T) {
	withHarness(t, func(o *harness) {
		broken := errors.New("flush failed")
		a := o.run("a", func(ctx context.Context) error { <-ctx.Done(); return broken })
		if err := a.Resign(o.Context()); err != nil {
			o.Error(err)
		}
		synctest.Wait()
		cause := o.last("demoted", "a").cause
		o.want("OnDemoted has both", errors.Is(cause, broken) && errors.Is(cause, election.ErrResigned))
		o.want("the error was reported", len(o.reported()) == 1 && errors.Is(o.reported()[0], broken))
		o.ends(a)
	})
}

// The release fails. The term is over, and Resign says that the lock may still be taken.
func TestReleaseFails(t *testing.T) {
	withHarness(t, func(o *harness) {
		a := o.run("a", nil)
		o.store.breaks(locker.ErrUnavailable)
		if err := a.Resign(o.Context()); !errors.Is(err, locker.ErrReleaseUnknown) || errors.Is(err, locker.ErrUnavailable) {
			o.Errorf("Resign: %v", err)
		}
		o.store.breaks(nil)
		synctest.Wait()
		o.want("it was reported", len(o.reported()) == 1 && errors.Is(o.reported()[0], locker.ErrReleaseUnknown))
		time.Sleep(2 * ttl)
		o.want("a leads again after the TTL", len(o.is("elected", "a")) == 2)
		o.ends(a)
	})
}

// The work fails with an error that says "cancelled", but nobody has ended its context.
func TestErrorOfAnotherContextIsReported(t *testing.T) {
	withHarness(t, func(o *harness) {
		cancelled := fmt.Errorf("query: %w", context.Canceled)
		a := o.run("a", func(context.Context) error { return cancelled })
		o.want("OnDemoted has the error", errors.Is(o.last("demoted", "a").cause, cancelled))
		o.want("it was reported", len(o.reported()) == 1 && errors.Is(o.reported()[0], cancelled))
		o.ends(a)
	})
}

// The work of a leader hangs when it should resign, and then the lease is lost. That is reported soon after the loss,
// because somebody else may lead by then.
func TestOverrunWhenTheLeaseIsLostAfterResign(t *testing.T) {
	withHarness(t, func(o *harness) {
		free := make(chan struct{})
		hangs := func(context.Context) error { <-free; return nil }
		a := o.run("a", hangs, func(c *election.Config) {
			c.Options = []locker.Option{locker.TTL(time.Minute)}
			c.OnOverrun = func(err error) { o.saw("a", "late", 0, err) }
		})
		term, _ := a.Leading()
		a.stop()
		time.Sleep(time.Second)
		if _, err := a.client.ForceRelease(o.Context(), key, ""); err != nil {
			o.Fatal(err)
		}
		<-term.Lease.Done() // at the next renewal
		lost := time.Since(o.begun)
		time.Sleep(51 * time.Millisecond)
		overrun := o.last("late", "a")
		o.want("within the grace", overrun.at-lost <= 50*time.Millisecond)
		o.want("the error says that it is lost", errors.Is(overrun.cause, election.ErrOverrun) &&
			errors.Is(overrun.cause, locker.ErrLost) && errors.Is(overrun.cause, context.Canceled))
		close(free)
		synctest.Wait()
		o.want("once", len(o.is("late", "a")) == 1)
		o.ends(a)
	})
}

// A Trace in the context of Run learns that a leader cannot renew, long before the term is lost.
func TestATraceLearnsOfRenewalsThatFail(t *testing.T) {
	withHarness(t, func(o *harness) {
		client := locker.NewClient(o.store)
		defer client.Close()
		ctx, cancel := context.WithCancel(lockertrace.With(o.Context(), &lockertrace.Trace{
			InDoubt: func(err error) { o.saw("a", "in doubt", 0, err) },
		}))
		ended := make(chan error, 1)
		go func() {
			ended <- election.Run(ctx, client, key, election.Config{
				Options:   []locker.Option{locker.TTL(ttl)},
				OnElected: func(ctx context.Context, _ election.Term) error { <-ctx.Done(); return nil },
				OnDemoted: func(_ election.Term, cause error) { o.saw("a", "demoted", 0, cause) },
				OnError:   func(err error) { o.Error(err) },
			})
		}()
		synctest.Wait()
		o.store.breaks(locker.ErrUnavailable)
		time.Sleep(ttl / 2)
		o.store.breaks(nil)
		time.Sleep(time.Minute)
		doubts := o.is("in doubt", "a")
		o.want("one failure is told", len(doubts) == 1 && errors.Is(doubts[0].cause, locker.ErrUnavailable))
		o.want("the term survives", len(o.is("demoted", "a")) == 0)
		cancel()
		if err := <-ended; err != nil {
			o.Error(err)
		}
	})
}
