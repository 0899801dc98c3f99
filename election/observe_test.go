package election_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/inspect"
)

// view is what an observer was told.
type view struct {
	at     time.Duration
	leader string
	term   uint64
	err    error
}

// observer collects what Observe yields until stop is called.
type observer struct {
	mu    sync.Mutex
	views []view
	stop  context.CancelFunc
	ended chan struct{}
}

func (o *harness) observes(l locker.Locker) *observer {
	ctx, cancel := context.WithCancel(o.Context())
	v := &observer{stop: cancel, ended: make(chan struct{})}
	go func() {
		defer close(v.ended)
		for leader, err := range election.Observe(ctx, l, key) {
			v.mu.Lock()
			v.views = append(v.views, view{time.Since(o.begun), leader.Identity, leader.Term, err})
			v.mu.Unlock()
		}
	}()
	synctest.Wait()
	return v
}

func (v *observer) seen() []view {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.views)
}

func (v *observer) end() {
	v.stop()
	<-v.ended
}

func (v *observer) last() view {
	seen := v.seen()
	return seen[len(seen)-1]
}

// A store that tells of changes tells observers at the moment of the change. It is hardly looked at otherwise.
func TestObserverIsTold(t *testing.T) {
	withHarness(t, func(o *harness) {
		l := locker.NewClient(o.store)
		defer l.Close()
		v := o.observes(l)
		o.want("nobody leads", v.last() == view{})
		const quiet = 1500 * time.Millisecond // it was not looked at just before
		time.Sleep(quiet)
		a, b := o.run("a", nil), o.run("b", nil)
		o.want("a leads", v.last() == view{quiet, "a", o.last("elected", "a").term, nil})
		time.Sleep(quiet)
		o.ends(a)
		synctest.Wait()
		o.want("b leads", v.last() == view{2 * quiet, "b", o.last("elected", "b").term, nil})
		looks := o.store.looked()
		time.Sleep(time.Minute + quiet)
		o.want("a minute has few looks", o.store.looked()-looks <= 30)
		o.ends(b)
		synctest.Wait()
		o.want("nobody leads", v.last().leader == "")
		v.end()
	})
}

// A store that tells of very much is not looked at all the time. After a quiet time, it is looked at at once.
func TestObserverIsToldTooMuch(t *testing.T) {
	withHarness(t, func(o *harness) {
		l := locker.NewClient(o.store)
		defer l.Close()
		a := o.run("a", nil)
		v := o.observes(l)
		time.Sleep(time.Second)
		before := o.store.looked()
		o.store.tells()
		synctest.Wait()
		o.want("a look at once", o.store.looked() == before+1)
		for range 1000 {
			o.store.tells()
			time.Sleep(time.Millisecond)
		}
		o.want("a look every 20 ms", o.store.looked()-before >= 45 && o.store.looked()-before <= 51)
		last := o.store.looked()
		o.store.tells()
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		o.want("a look after the last hint", o.store.looked() > last)
		v.end()
		o.ends(a)
	})
}

// A store that does not tell is looked at about once per renewal interval, and once for all observers of a client.
func TestObserversShareOneLook(t *testing.T) {
	withHarness(t, func(o *harness) {
		o.store.silent = true
		l := locker.NewClient(o.store)
		defer l.Close()
		wrapped := locker.Wrap(l, locker.Defaults(locker.TTL(time.Minute)))
		var vs []*observer
		for range 50 {
			vs = append(vs, o.observes(l), o.observes(wrapped))
		}
		a := o.run("a", nil)
		time.Sleep(10 * time.Second)
		looks := o.store.looked()
		time.Sleep(time.Minute)
		n := o.store.looked() - looks
		o.want("60 renewal intervals have about 60 looks", n >= 45 && n <= 90)
		b := o.run("b", nil)
		o.ends(a)
		changed := time.Since(o.begun)
		time.Sleep(5 * time.Second)
		for _, v := range vs {
			o.want("all see b within a renewal interval and a fifth", v.last().leader == "b" &&
				v.last().at-changed <= ttl*2/5)
			v.end()
		}
		o.ends(b)
	})
}

// The store fails. The reader gets one error, and then the leader again.
func TestObserverOfAFailingStore(t *testing.T) {
	withHarness(t, func(o *harness) {
		o.store.silent = true
		l := locker.NewClient(o.store)
		defer l.Close()
		a := o.run("a", nil)
		v := o.observes(l)
		o.store.breaks(locker.ErrUnavailable)
		time.Sleep(2 * time.Second) // the lease survives
		o.store.breaks(nil)
		time.Sleep(2 * time.Second)
		seen := v.seen()
		o.want("leader, error, leader", len(seen) == 3 && seen[0].leader == "a" &&
			errors.Is(seen[1].err, locker.ErrUnavailable) && seen[2].leader == "a" && seen[2].term == seen[0].term)
		v.end()
		o.ends(a)
	})
}

// A leader dies. An observer sees that nobody leads when the lock has expired, or soon after.
func TestObserverOfADeadLeader(t *testing.T) {
	for _, silent := range []bool{false, true} {
		withHarness(t, func(o *harness) {
			o.store.silent = silent
			l := locker.NewClient(o.store)
			defer l.Close()
			if _, err := o.store.Acquire(o.Context(), backend.Request{Key: key, Token: "x", TTL: ttl}); err != nil {
				o.Fatal(err)
			}
			v := o.observes(l)
			o.want("somebody without a label leads", v.last().term > 0)
			time.Sleep(2 * ttl)
			o.want("nobody leads", v.last().term == 0 && v.last().at >= ttl && v.last().at <= ttl+time.Second)
			v.end()
		})
	}
}

// bare is a Locker that cannot show anything.
type bare struct{ locker.Locker }

// The sequence ends by itself if there is no point in going on, and whenever the reader leaves.
func TestObserveEnds(t *testing.T) {
	withHarness(t, func(o *harness) {
		l := locker.NewClient(o.store)
		for _, err := range election.Observe(o.Context(), bare{l}, key) {
			o.want("it is not supported", errors.Is(err, errors.ErrUnsupported))
		}
		for _, err := range election.Observe(o.Context(), l, "") {
			o.want("the key is empty", errors.Is(err, locker.ErrInvalid))
		}
		for range election.Observe(o.Context(), l, key) {
			break
		}
		v := o.observes(l)
		ended, end := context.WithCancel(o.Context())
		end()
		for leader := range election.Observe(ended, l, key) { // which the other observer has seen already
			o.Errorf("%v was seen after the end", leader)
		}
		_ = l.Close()
		<-v.ended
		o.want("the client is closed", errors.Is(v.last().err, locker.ErrClosed))
	})
}

// OnNewLeader is called once for each new leader, in order, this candidate included.
func TestOnNewLeader(t *testing.T) {
	withHarness(t, func(o *harness) {
		o.store.silent = true // so that b learns of its own terms from itself
		hears := func(c *election.Config) {
			name := c.Identity
			c.OnNewLeader = func(l election.Leader) { o.saw(name, "sees "+l.Identity, l.Term, nil) }
		}
		a, b := o.run("a", nil), o.run("b", nil, hears)
		time.Sleep(10 * time.Second)
		o.want("b sees a", len(o.is("sees a", "b")) == 1)
		o.ends(a)
		synctest.Wait()
		o.want("b sees itself at once", o.last("sees b", "b").at == 10*time.Second &&
			o.last("sees b", "b").term == o.last("elected", "b").term)
		time.Sleep(10 * time.Second)
		o.want("once", len(o.is("sees b", "b")) == 1)
		o.ends(b)
	})
}

// A candidate without OnNewLeader does not ask who leads.
func TestNobodyAsksWithoutObservers(t *testing.T) {
	withHarness(t, func(o *harness) {
		a, b := o.run("a", nil), o.run("b", nil)
		time.Sleep(time.Minute)
		o.ends(a, b)
		o.want("no looks", o.store.looked() == 0)
	})
}

// A store that could not be asked for a while, and a time without a leader, are no new leader.
func TestOnNewLeaderIsAboutNewLeadersOnly(t *testing.T) {
	withHarness(t, func(o *harness) {
		o.store.silent = true
		a := o.run("a", nil)
		b := o.run("b", nil, func(c *election.Config) {
			c.Healthy = func(context.Context) error { return errors.New("never") } // so that it does not lead itself
			c.OnNewLeader = func(l election.Leader) { o.saw("b", "sees "+l.Identity, l.Term, nil) }
		})
		time.Sleep(2 * time.Second)
		o.store.breaks(locker.ErrUnavailable)
		time.Sleep(1500 * time.Millisecond) // the lease survives
		o.store.breaks(nil)
		time.Sleep(2 * time.Second)
		o.ends(a)
		time.Sleep(5 * time.Second)
		a = o.run("a", nil)
		time.Sleep(5 * time.Second)
		seen := o.is("sees a", "b")
		o.want("a, and a again in its next term", len(seen) == 2 && seen[0].term < seen[1].term)
		o.want("nobody is no leader", len(o.is("sees ", "b")) == 0)
		o.want("the observer's fault says whose it is", slices.ContainsFunc(o.reported(), func(err error) bool {
			return errors.Is(err, locker.ErrUnavailable) && strings.HasPrefix(err.Error(), "observing the leader: ")
		}))
		o.ends(a, b)
	})
}

// On a store that does not tell, a term of a candidate with the same Locker is seen when it begins and when it ends.
func TestOwnTermsAreSeenAtOnce(t *testing.T) {
	withHarness(t, func(o *harness) {
		o.store.silent = true
		a := o.run("a", nil, func(c *election.Config) { c.Options = append(c.Options, locker.Label("another")) })
		v := o.observes(a.client)
		time.Sleep(10 * time.Second)
		o.want("the identity is the label", v.last().leader == "a")
		if err := a.Resign(o.Context()); err != nil {
			o.Error(err)
		}
		resigned := time.Since(o.begun)
		time.Sleep(50 * time.Millisecond)
		o.want("nobody leads", v.last().leader == "" && v.last().at-resigned <= 20*time.Millisecond)
		time.Sleep(200 * time.Millisecond)
		elected := o.last("elected", "a")
		o.want("a leads again", v.last().term == elected.term && v.last().at-elected.at <= 20*time.Millisecond)
		v.end()
		o.ends(a)
	})
}

// Candidates of one Client have the lock one after the other, and the store is asked each time. Observers everywhere
// see the term of the one that leads.
func TestObserversSeeTheTermOfCandidatesOfOneClient(t *testing.T) {
	withHarness(t, func(o *harness) {
		c, other := locker.NewClient(o.store), locker.NewClient(o.store)
		defer c.Close()
		defer other.Close()
		ctx, cancel := context.WithCancel(o.Context())
		before, err := other.TryLock(ctx, key)
		if err != nil {
			o.Fatal(err)
		}
		run := func(name string, lead func(ctx context.Context)) {
			o.wg.Go(func() {
				_ = election.Run(ctx, c, key, election.Config{
					OnElected: func(ctx context.Context, term election.Term) error {
						o.saw(name, "elected", term.Number, nil)
						lead(ctx)
						o.saw(name, "stopping", term.Number, nil)
						return nil
					},
					OnNewLeader: func(l election.Leader) { o.saw(name, "sees", l.Term, nil) },
				})
			})
			synctest.Wait()
		}
		run("a", func(context.Context) {}) // cannot lead, and finds that at once
		run("b", func(ctx context.Context) { <-ctx.Done() })
		v := o.observes(other)
		if err := before.Unlock(ctx); err != nil {
			o.Error(err)
		}
		time.Sleep(time.Minute)
		term := o.last("elected", "b").term
		o.want("a term of each", o.last("elected", "a").term < term)
		o.want("the observer sees that of b", v.last().term == term)
		o.want("and so do the candidates", o.last("sees", "a").term == term && o.last("sees", "b").term == term)
		v.end()
		cancel()
	})
}

// shows is a Locker with inspections that a test gives.
type shows struct {
	locker.Locker
	inspect.Inspector
	mu    sync.Mutex
	now   inspect.Inspection
	looks int
}

func (s *shows) Inspect(context.Context, string) (inspect.Inspection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	return s.now, nil
}

// show sets the inspection, and returns how often the Locker was looked at.
func (s *shows) show(now inspect.Inspection) (looks int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
	return s.looks
}

// A leader without a label and a token is somebody. A Redlock whose nodes do not agree has no other leader yet. A lock
// that is about to expire is not looked at again and again.
func TestWhatAnObserverMakesOfALock(t *testing.T) {
	withHarness(t, func(o *harness) {
		s := &shows{now: inspect.Inspection{State: inspect.Held, Owner: "0123", Remaining: time.Second}}
		v := o.observes(s)
		o.want("the owner leads", v.last().leader == "0123")
		s.show(inspect.Inspection{State: inspect.Split})
		time.Sleep(10 * time.Second)
		o.want("it still does", len(v.seen()) == 1)
		looks := s.show(inspect.Inspection{State: inspect.Held, Label: "a"})
		time.Sleep(10 * time.Second)
		o.want("a leads", v.last().leader == "a")
		o.want("a few looks", s.show(inspect.Inspection{State: inspect.Free})-looks <= 30)
		time.Sleep(2 * time.Second)
		o.want("nobody leads", v.last().leader == "")
		v.end()
	})
}
