package lockkube_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockkube"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertest"
)

const key = "my-operator"

// times are durations of an elector.
type times struct{ lease, deadline, retry time.Duration }

// defaults are those of client-go and of controller-runtime.
var defaults = seconds(15, 10, 2)

func seconds(lease, deadline, retry float64) times {
	s := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	return times{s(lease), s(deadline), s(retry)}
}

// slowest is the longest time between two attempts of a candidate.
func (t times) slowest() time.Duration { return t.retry * 22 / 10 }

// world is a store of locks, and the candidates of several processes.
type world struct {
	*testing.T
	store *lockertest.Store

	mu      sync.Mutex
	leaders []string // who leads now
	terms   []string // who has led, one after the other
}

func inVirtualTime(t *testing.T, f func(w *world)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) { f(&world{T: t, store: lockertest.NewStore()}) })
}

func (w *world) client() *locker.Client {
	c := locker.NewClient(w.store)
	w.Cleanup(func() { _ = c.Close() })
	return c
}

func (w *world) lock(l locker.Locker, identity string) *lockkube.Lock {
	return lockkube.New(l, key, identity)
}

// began is called when a candidate begins to lead.
func (w *world) began(identity string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leaders = append(w.leaders, identity)
	w.terms = append(w.terms, identity)
	if len(w.leaders) > 1 {
		w.Errorf("%q lead at a time", w.leaders)
	}
}

// ended is called when a candidate leads no more. It has no effect if it did not lead.
func (w *world) ended(identity string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leaders = slices.DeleteFunc(w.leaders, func(leader string) bool { return leader == identity })
}

// leader returns who leads now, or an empty string.
func (w *world) leader() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.leaders, "+")
}

// candidate is an elector. It is that of one process unless it shares a Lock.
type candidate struct {
	*leaderelection.LeaderElector
	identity string
	stop     context.CancelFunc
	over     chan struct{} // closed when Run has returned

	mu   sync.Mutex
	seen []string // what OnNewLeader was called with
}

// elector returns a candidate that does nothing yet.
func (w *world) elector(lock resourcelock.Interface, d times, release bool) *candidate {
	w.Helper()
	c := &candidate{identity: lock.Identity(), over: make(chan struct{})}
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: d.lease, RenewDeadline: d.deadline, RetryPeriod: d.retry, ReleaseOnCancel: release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { w.began(c.identity) },
			OnStoppedLeading: func() { w.ended(c.identity) },
			OnNewLeader: func(identity string) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.seen = append(c.seen, identity)
			},
		},
	})
	if err != nil {
		w.Fatal(err)
	}
	c.LeaderElector = e
	return c
}

// run starts a candidate, and returns when it has asked for the lock once.
func (w *world) run(lock resourcelock.Interface, d times, release bool) *candidate {
	w.Helper()
	c := w.elector(lock, d, release)
	ctx, cancel := context.WithCancel(w.Context())
	c.stop = cancel
	go func() {
		defer close(c.over)
		c.Run(ctx)
	}()
	synctest.Wait()
	return c
}

// campaign is run, with an elector after the other until the test ends.
func (w *world) campaign(lock resourcelock.Interface, d times) {
	go func() {
		for w.Context().Err() == nil {
			w.elector(lock, d, false).Run(w.Context())
		}
	}()
	synctest.Wait()
}

func (w *world) leads(want string) {
	w.Helper()
	if got := w.leader(); got != want {
		w.Errorf("%q leads, want %q", got, want)
	}
}

// must fails the test unless err is nil, or matches want.
func (w *world) must(err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Errorf("%v, want %v", err, want)
	}
}

func TestOneLeads(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		a := w.run(w.lock(w.client(), "a"), defaults, false)
		var others []*candidate
		for i := range 4 {
			others = append(others, w.run(w.lock(w.client(), fmt.Sprintf("b%d", i)), defaults, false))
		}
		time.Sleep(time.Hour)
		w.leads("a")
		for _, b := range others {
			if got := b.GetLeader(); got != "a" {
				t.Errorf("%s takes %q for the leader", b.identity, got)
			}
			b.mu.Lock()
			if !slices.Equal(b.seen, []string{"a"}) {
				t.Errorf("%s was told of %q", b.identity, b.seen)
			}
			b.mu.Unlock()
		}
		a.stop() // without a release
		<-a.over
		w.leads("")
		time.Sleep(defaults.lease - defaults.retry - time.Second)
		w.leads("")
		time.Sleep(defaults.retry + time.Second + defaults.slowest())
		if got := w.leader(); !strings.HasPrefix(got, "b") {
			t.Errorf("%q leads", got)
		}
	})
}

func TestReleaseOnCancelHandsOn(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		long := times{time.Hour, time.Minute, 2 * time.Second}
		a := w.run(w.lock(w.client(), "a"), long, true)
		w.run(w.lock(w.client(), "b"), long, true)
		time.Sleep(time.Minute)
		w.leads("a")
		w.ended("a") // its work is over
		a.stop()
		<-a.over
		time.Sleep(long.slowest())
		w.leads("b")
	})
}

// Locks of one process and of one identity exclude each other as others do, and none takes the lease of another one for
// its own.
func TestLocksOfOneIdentity(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		l := w.client()
		first, second := w.lock(l, "pod:1"), w.lock(l, "pod:1")
		a := w.run(first, defaults, true)
		b := w.run(second, defaults, true)
		time.Sleep(time.Minute)
		if n := len(w.terms); n != 1 {
			t.Errorf("%d lead", n)
		}
		if b.IsLeader() || !strings.HasPrefix(b.GetLeader(), "pod:1, owner ") {
			t.Errorf("the second takes %q for the leader, and that for itself: %v", b.GetLeader(), b.IsLeader())
		}
		if lease, leads := second.Lease(); leads {
			t.Errorf("the second has a lease: %v", lease)
		}
		b.stop()
		<-b.over
		if lease, leads := first.Lease(); !leads {
			t.Errorf("the end of the second has ended the term of the first: %v", lease.Err())
		}
		a.stop()
		<-a.over
	})
}

// outage lets two candidates campaign while the store is down for d, beginning at a time after the last renewal.
func outage(w *world, at, d time.Duration) {
	a, b := w.lock(w.client(), "a"), w.lock(w.client(), "b")
	w.campaign(a, defaults)
	w.campaign(b, defaults)
	time.Sleep(20*time.Second + at)
	w.leads("a")
	lease, _ := a.Lease()
	w.store.Down()
	time.Sleep(d)
	if d > defaults.retry+defaults.deadline {
		w.leads("")
	} else if d < defaults.deadline {
		w.leads("a")
	}
	w.store.Up()
	time.Sleep(defaults.lease + time.Second + defaults.slowest())
	if w.leader() == "" {
		w.Error("nobody leads after the outage")
	}
	if now, leads := a.Lease(); leads && now == lease && d > defaults.lease {
		w.Error("the lease has survived the outage")
	}
}

// Never do two lead, and somebody leads after each outage. One that is shorter than the RenewDeadline changes nothing.
func TestOutages(t *testing.T) {
	for d := time.Second; d <= 20*time.Second; d += time.Second {
		for at := time.Duration(0); at < defaults.retry; at += defaults.retry / 4 {
			inVirtualTime(t, func(w *world) { outage(w, at, d) })
		}
	}
}

func TestStoreThatDoesNotAnswer(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		k := w.lock(w.client(), "a")
		a := w.run(k, defaults, false)
		time.Sleep(time.Minute)
		w.leads("a")
		lease, _ := k.Lease()
		until := lease.Until()
		w.store.Delay(time.Hour)
		<-a.over
		if left := time.Until(until); left < 0 {
			t.Errorf("the elector has stopped %v after the end of its lease", -left)
		}
		start := time.Now()
		w.must(k.Update(w.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}),
			locker.ErrUnavailable)
		if took := time.Since(start); took > 2500*time.Millisecond {
			t.Errorf("a request took %v", took)
		}
		time.Sleep(time.Minute)
		start = time.Now()
		_, _, err := k.Get(w.Context())
		w.must(err, locker.ErrUnavailable)
		if took := time.Since(start); took > 2500*time.Millisecond {
			t.Errorf("a look took %v", took)
		}
	})
}

// A candidate whose lease is lost does not get the lock again before its elector has stopped, although it is free.
func TestALossEndsTheTerm(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		k := w.lock(w.client(), "a")
		w.run(k, defaults, true)
		time.Sleep(time.Minute)
		w.leads("a")
		loss := make(chan error, 1)
		go func() { loss <- k.AwaitLoss(w.Context()) }()
		synctest.Wait()
		w.must(w.store.Lose(w.Context(), key), nil)
		lost := time.Now()
		w.must(<-loss, locker.ErrLost)
		if took := time.Since(lost); took > 0 {
			t.Errorf("AwaitLoss has returned after %v", took)
		}
		time.Sleep(defaults.retry + defaults.deadline)
		w.leads("")
		if n := len(w.terms); n != 1 {
			t.Errorf("%d terms", n)
		}
	})
}

func TestUpdateAfterALoss(t *testing.T) {
	for what, lose := range map[string]func(w *world, k *lockkube.Lock){
		"deleted": func(w *world, _ *lockkube.Lock) { w.must(w.store.Lose(w.Context(), key), nil) },
		"expired": func(*world, *lockkube.Lock) { time.Sleep(time.Minute) },
	} {
		t.Run(what, func(t *testing.T) {
			inVirtualTime(t, func(w *world) {
				k, other := w.lock(w.client(), "a"), w.lock(w.client(), "b")
				record := resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}
				w.must(k.Create(w.Context(), record), nil)
				lose(w, k)
				synctest.Wait()
				w.must(k.AwaitLoss(w.Context()), locker.ErrLost)
				if seen, _, err := k.Get(w.Context()); err != nil || seen.HolderIdentity != "" {
					t.Errorf("the record of the free lock is %+v, %v", seen, err)
				}
				for range 15 {
					w.must(k.Update(w.Context(), record), locker.ErrLost)
					w.must(k.Create(w.Context(), record), locker.ErrLost)
					time.Sleep(time.Second)
				}
				record.HolderIdentity = "b"
				w.must(other.Create(w.Context(), record), nil) // others may lead at once
				w.must(other.Update(w.Context(), resourcelock.LeaderElectionRecord{}), nil)
				time.Sleep(time.Second)
				record.HolderIdentity = "a"
				w.must(k.Update(w.Context(), record), nil)
			})
		})
	}
}

// Nothing renews the lease of an elector that hangs.
func TestAnElectorThatHangsLosesTheLock(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		hung := w.lock(w.client(), "a")
		w.must(hung.Create(w.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}),
			nil)
		w.run(w.lock(w.client(), "b"), defaults, false)
		time.Sleep(14 * time.Second)
		w.leads("")
		time.Sleep(time.Second + defaults.slowest())
		w.leads("b")
		w.must(hung.AwaitLoss(w.Context()), locker.ErrLost)
	})
}

func TestRecords(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		a, b := w.lock(w.client(), "a"), w.lock(w.client(), "b")
		get := func(k *lockkube.Lock) (*resourcelock.LeaderElectionRecord, string) {
			record, raw, err := k.Get(w.Context())
			w.must(err, nil)
			return record, string(raw)
		}
		if free, _ := get(b); free.HolderIdentity != "" {
			t.Errorf("the record of the free lock is %+v", free)
		}
		record := resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15, LeaderTransitions: 7}
		w.must(a.Update(w.Context(), record), nil)
		own, first := get(a)
		time.Sleep(4 * time.Second)
		_, second := get(a)
		if *own != record || first != second {
			t.Errorf("the own record is %+v, at first %s and then %s; want %+v", own, first, second, record)
		}
		seen, first := get(b)
		if seen.HolderIdentity != "a" || seen.LeaseDurationSeconds < 10 || seen.LeaseDurationSeconds > 12 {
			t.Errorf("the record of the lock that a has is %+v", seen)
		}
		if held := time.Since(seen.AcquireTime.Time); held != 4*time.Second {
			t.Errorf("the lock is said to be held for %v", held)
		}
		time.Sleep(time.Second)
		if _, second := get(b); first == second {
			t.Errorf("the record of the lock that a has is %s again", second)
		}
		w.must(b.Update(w.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "b", LeaseDurationSeconds: 15}),
			locker.ErrHeld)
		w.must(b.Update(w.Context(), resourcelock.LeaderElectionRecord{}), locker.ErrUnlocked)
		w.must(a.Update(w.Context(), resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1}), nil)
		w.must(a.AwaitLoss(w.Context()), nil)
		if free, _ := get(b); free.HolderIdentity != "" {
			t.Errorf("the record of the released lock is %+v", free)
		}
		w.must(b.Update(w.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "b", LeaseDurationSeconds: 15}), nil)
	})
}

// The tokens of terms grow, and a renewal does not change them.
func TestTokens(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		last := uint64(0)
		for i := range 3 {
			k := w.lock(w.client(), fmt.Sprint(i))
			c := w.run(k, defaults, true)
			lease, leads := k.Lease()
			if !leads || lease.Fence() <= last {
				t.Fatalf("the lease %v after the token %d", lease, last)
			}
			last = lease.Fence()
			time.Sleep(time.Minute)
			if lease, leads := k.Lease(); !leads || lease.Fence() != last {
				t.Errorf("the token has changed from %d to %d", last, lease.Fence())
			}
			w.ended(c.identity)
			c.stop()
			<-c.over
			if _, leads := k.Lease(); leads {
				t.Error("there is a lease after the release")
			}
		}
	})
}

// recording is a Lock that keeps the errors of its updates.
type recording struct {
	resourcelock.Interface
	mu   sync.Mutex
	errs []error
}

func (r *recording) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := r.Interface.Update(ctx, record)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.errs = append(r.errs, err)
	}
	return err
}

func TestLeaseDurationMustBeLongEnough(t *testing.T) {
	for name, tt := range map[string]struct {
		times
		delay time.Duration // of each answer of the store
		fits  bool
	}{
		"the defaults":                    {defaults, 0, true},
		"the defaults, and a slow store":  {defaults, 2 * time.Second, true},
		"just long enough":                {seconds(13, 10, 2), 0, true},
		"as long as a deadline and pause": {seconds(12, 10, 2), 0, false},
		"what client-go accepts":          {seconds(11, 10, 2), 0, false},
		"below a second":                  {seconds(0.9, 0.5, 0.3), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(w *world) {
				w.store.Delay(tt.delay)
				r := &recording{Interface: w.lock(w.client(), "a")}
				a := w.run(r, tt.times, true)
				time.Sleep(time.Minute)
				select {
				case <-a.over:
					if tt.fits {
						t.Error("the elector has stopped")
					}
				default:
					if leads := w.leader() == "a"; leads != tt.fits {
						t.Errorf("a leads: %v", leads)
					}
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				if fits := len(r.errs) == 0; fits != tt.fits {
					t.Fatalf("errors: %v", r.errs)
				}
				if !tt.fits {
					w.must(r.errs[0], locker.ErrInvalid) // the lease ends while the elector tries again
				}
			})
		})
	}
}

// A request that was slow once, or a process that stood still, does not end a term.
func TestOneSlowRenewalIsTolerated(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		tight := seconds(13, 10, 2)
		w.run(w.lock(w.client(), "a"), tight, true)
		for range 10 {
			time.Sleep(time.Minute)
			w.store.Delay(2 * time.Second)
			time.Sleep(2 * time.Second)
			w.store.Delay(0)
		}
		w.leads("a")
		if n := len(w.terms); n != 1 {
			t.Errorf("%d terms", n)
		}
	})
}

// blind is a Locker that cannot show who holds its locks.
type blind struct{ locker.Locker }

func TestLockerThatCannotShowItsLocks(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		a := w.run(w.lock(blind{w.client()}, "a"), defaults, true)
		w.run(w.lock(blind{w.client()}, "b"), defaults, true)
		time.Sleep(time.Minute)
		w.leads("a")
		w.ended("a")
		a.stop()
		<-a.over
		time.Sleep(defaults.slowest())
		w.leads("b")
	})
}

func TestIdentities(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		for _, bad := range []string{strings.Repeat("x", 65), "a|b", "a\nb"} {
			w.must(lockkube.New(w.client(), key, bad).Update(w.Context(), resourcelock.LeaderElectionRecord{
				HolderIdentity: bad, LeaseDurationSeconds: 15,
			}), locker.ErrInvalid)
		}
		unnamed := w.lock(w.client(), "")
		if unnamed.Identity() == "" || unnamed.Describe() != key {
			t.Errorf("the candidate %q for %q", unnamed.Identity(), unnamed.Describe())
		}
		w.must(unnamed.Update(w.Context(), resourcelock.LeaderElectionRecord{
			HolderIdentity: unnamed.Identity(), LeaseDurationSeconds: 15,
		}), nil)
		if seen, _, err := w.lock(w.client(), "b").Get(w.Context()); err != nil || seen.HolderIdentity != unnamed.Identity() {
			t.Errorf("%+v, %v; want %s", seen, err, unnamed.Identity())
		}
	})
}
