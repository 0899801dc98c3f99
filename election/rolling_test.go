package election_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/internal/testing/placestest"
)

// Five candidates are replaced one after the other, as in a rolling restart. Whenever the leader is, the next one leads
// at that moment.
func TestRollingRestartLeavesNoGap(t *testing.T) {
	withHarness(t, func(o *harness) {
		var all []*candidate
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			all = append(all, o.run(name, nil))
			synctest.Wait()
		}
		for i, c := range all {
			time.Sleep(time.Minute)
			before := len(o.is("elected", ""))
			if _, led := c.Leading(); led {
				at := time.Since(o.begun)
				o.ends(c)
				synctest.Wait()
				o.want("somebody else leads at once", len(o.is("elected", "")) == before+1 && o.last("elected", "").at == at)
			} else {
				o.ends(c)
			}
			all[i] = o.run(c.name+" again", nil)
		}
		o.ends(all...)
		o.want("nothing went wrong", len(o.reported()) == 0)
	})
}

// When a Client drains, its leader stops and hands on, and a candidate of it leaves the queue. Run returns as at the
// end of its context, and Drain when the work of the leader has ended.
func TestDrainHandsOnAtOnce(t *testing.T) {
	withHarness(t, func(o *harness) {
		a := o.run("a", func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(500 * time.Millisecond) // to finish what it did
			return ctx.Err()
		})
		b, c := o.run("b", nil), o.run("c", nil)
		time.Sleep(time.Minute)
		if held := b.client.Drain(o.Context()); len(held) > 0 {
			o.Errorf("%v is held", held)
		}
		o.want("a candidate leaves the queue", (<-b.ended) == nil && time.Since(o.begun) == time.Minute)
		if held := a.client.Drain(o.Context()); len(held) > 0 {
			o.Errorf("%v is held", held)
		}
		o.want("Drain waits for the work", time.Since(o.begun) == time.Minute+500*time.Millisecond)
		synctest.Wait()
		o.want("the next one leads at once", o.last("elected", "c").at == time.Minute+500*time.Millisecond)
		o.want("Run returns no error", (<-a.ended) == nil)
		o.want("the context and OnDemoted say why", errors.Is(o.last("stopping", "a").cause, locker.ErrDraining) &&
			errors.Is(o.last("demoted", "a").cause, locker.ErrDraining))
		o.ends(c)
		o.want("nothing went wrong", len(o.reported()) == 0)
	})
}

// The work of a leader may learn of Drain, from a lock that it wants, before its context ends. That is no failure.
func TestDrainIsNoFailureOfTheWork(t *testing.T) {
	withHarness(t, func(o *harness) {
		drained, elected := locker.NewClient(o.store), make(chan struct{})
		defer drained.Close()
		err := election.Run(o.Context(), drained, key, election.Config{
			OnElected: func(ctx context.Context, _ election.Term) error {
				close(elected)
				begun, end := context.WithCancel(ctx)
				end()
				drained.Drain(begun)
				_, err := drained.Lock(ctx, "other")
				return err
			},
			OnError: func(err error) { o.Error(err) },
		})
		<-elected
		o.want("Run returns no error", err == nil)
	})
}

// A candidate behind a middleware that hides its Client learns of Drain from the next Lock. So does one that comes
// later.
func TestDrainBehindAMiddlewareThatHidesIt(t *testing.T) {
	withHarness(t, func(o *harness) {
		a, c := o.run("a", nil), locker.NewClient(o.store)
		defer c.Close()
		ended := make(chan error, 1)
		campaign := func() {
			ended <- election.Run(o.Context(), placestest.Opaque(c), key, election.Config{
				OnElected: func(context.Context, election.Term) error { return nil },
				OnError:   func(err error) { o.Error(err) },
			})
		}
		go campaign()
		time.Sleep(time.Second)
		c.Drain(o.Context())
		if err := <-ended; err != nil {
			o.Errorf("Run: %v", err)
		}
		campaign()
		if err := <-ended; err != nil {
			o.Errorf("Run of a Client that drains: %v", err)
		}
		o.ends(a)
	})
}

// rollout replaces three candidates, one after the other, and waits for half a minute after each. It returns how often
// the leader has changed, and for how long nobody led.
func rollout(t *testing.T, leaderLast, killed bool) (changes int, without time.Duration) {
	withHarness(t, func(o *harness) {
		work := func(ctx context.Context) error {
			<-ctx.Done()
			if !killed {
				time.Sleep(rand.N(time.Second)) // what it has begun
			}
			return nil
		}
		var all []*candidate
		for _, name := range []string{"a", "b", "c"} {
			all = append(all, o.run(name, work))
		}
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		time.Sleep(30*time.Second + rand.N(ttl))
		if leaderLast {
			slices.SortStableFunc(all, func(a, b *candidate) int {
				if _, leads := a.Leading(); leads {
					return 1
				}
				if _, leads := b.Leading(); leads {
					return -1
				}
				return 0
			})
		}
		var next []*candidate
		for _, c := range all {
			next = append(next, o.run(c.name+" again", work)) // the new one is ready before the old one ends
			if killed {
				c.kill()
			} else {
				c.client.Drain(o.Context())
				o.ends(c)
			}
			time.Sleep(30*time.Second + rand.N(ttl))
		}
		changes = len(o.is("elected", "")) - 1
		for _, end := range o.is("stopping", "") {
			for _, e := range o.is("elected", "") {
				if e.at >= end.at {
					without += e.at - end.at
					break
				}
			}
		}
		o.ends(next...)
	})
	return changes, without
}

// What a rollout of three candidates costs, on 400 of them: docs/replacing.md has the figures, which -v prints.
func TestRolloutOfThree(t *testing.T) {
	for _, leaderLast := range []bool{false, true} {
		for _, killed := range []bool{false, true} {
			total, most, without, longest := 0, 0, time.Duration(0), time.Duration(0)
			bound := time.Second // of the work, to stop
			if killed {
				bound = ttl
			}
			const n = 100
			for range n {
				changes, gap := rollout(t, leaderLast, killed)
				total, most, without, longest = total+changes, max(most, changes), without+gap, max(longest, gap)
				if gap > time.Duration(changes)*bound {
					t.Errorf("killed: %v: %d changes, and nobody led for %v", killed, changes, gap)
				}
			}
			t.Logf("leader last: %v, killed: %v: %.2f changes, %d at most; without a leader for %v, %v at most", leaderLast,
				killed, float64(total)/n, most, (without / n).Round(time.Millisecond), longest.Round(time.Millisecond))
			if leaderLast && most > 1 || most > 3 {
				t.Errorf("leader last: %v: the leader has changed %d times", leaderLast, most)
			}
		}
	}
}
