package record_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/record"
)

// busy acquires and releases places of k, one for each goroutine, until the test ends.
func busy(t *testing.T, b *record.Backend, places ...int) {
	var wg sync.WaitGroup
	for _, place := range places {
		wg.Go(func() {
			time.Sleep(time.Duration(place) * 3 * time.Millisecond)
			for t.Context().Err() == nil {
				if req, err := inGroup(t, b, place, 10*time.Second); err == nil {
					_ = b.Release(t.Context(), req)
				}
			}
		})
	}
	t.Cleanup(wg.Wait)
}

// far is the same store for a process that is further away from it.
type far struct {
	record.Store
	way time.Duration // is longer by so much
}

func (f far) Get(ctx context.Context, name string) ([]byte, string, error) {
	time.Sleep(f.way)
	defer time.Sleep(f.way)
	return f.Store.Get(ctx, name)
}

func (f far) Create(ctx context.Context, name string, text []byte) (string, error) {
	time.Sleep(f.way)
	defer time.Sleep(f.way)
	return f.Store.Create(ctx, name, text)
}

func (f far) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	time.Sleep(f.way)
	defer time.Sleep(f.way)
	return f.Store.Replace(ctx, name, version, text)
}

// Processes that write a record all the time end no lease of one that takes five times as long, whose acquisitions and
// releases succeed, too.
func TestBusyProcessesLeaveTheRecordToAFartherOne(t *testing.T) {
	for _, processes := range []int{1, 3} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				s.Latency = 5 * time.Millisecond
				farther := far{s, 20 * time.Millisecond}
				lease, err := client(t, farther).Lock(t.Context(), "{k}#30", locker.TTL(10*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				for n := range processes {
					busy(t, backendOf(t, s), 2*n, 2*n+1)
				}
				l, least := client(t, farther), time.Hour
				for n := range 15 {
					time.Sleep(time.Second)
					began := time.Now()
					next, err := l.TryLock(t.Context(), fmt.Sprintf("{k}#%d", 40+n))
					if took := time.Since(began); err != nil || took > 4*time.Second {
						t.Fatalf("after %v: %v", took, err)
					}
					if err := next.Unlock(t.Context()); err != nil && !errors.Is(err, locker.ErrUnavailable) {
						t.Error(err)
					}
					least = min(least, time.Until(lease.Until()))
				}
				if err := lease.Err(); err != nil || least < 4*time.Second {
					t.Errorf("%v was left once: %v", least, err)
				}
				time.Sleep(3 * time.Second)
				for n := range 15 {
					i, err := record.NewBackend(s).Inspect(t.Context(), fmt.Sprintf("{k}#%d", 40+n))
					if err != nil || i.State != inspect.Free {
						t.Errorf("place %d: %v, %v", 40+n, i.State, err)
					}
				}
			})
		})
	}
}

// Renewals that are given up before they are answered, again and again, end no lease of another place.
func TestRenewalsThatAreGivenUpHoldUpNoOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		s.Latency = 15 * time.Millisecond
		c := client(t, s)
		one, err := c.TryLock(t.Context(), "{k}#1", locker.TTL(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		other, err := c.TryLock(t.Context(), "{k}#2", locker.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			_ = other.Extend(ctx)
			cancel()
		}
		if err := one.Err(); err != nil {
			t.Error(err)
		}
	})
}

// The clocks of time.Now, which are one in a bubble, are read one after the other.
func TestPeriodIsOneByBothClocks(t *testing.T) {
	if n := record.Periods(1000); n > 2 {
		t.Errorf("%d periods have begun at the same time", n)
	}
}

// A process alone that writes all the time pauses for a sixteenth of it.
func TestBusyProcessAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		s.Latency = 5 * time.Millisecond
		busy(t, backendOf(t, s), 0)
		time.Sleep(8 * time.Second)
		if n := s.Requests()["replace"]; n < 700 {
			t.Errorf("%d writes in 8 s", n)
		}
	})
}

// Who finds a place held is told so, although others of its process write all the time, and also if the lock of the
// holder has to be written anew because of its clock.
func TestLookInABusyProcess(t *testing.T) {
	start := time.Now()
	for _, id := range []string{"", "a"} {
		for _, processes := range []int{1, 2} {
			t.Run(fmt.Sprintf("clock %q, %d processes", id, processes), func(t *testing.T) {
				inBubble(t, func(t *testing.T, s *recordstore.Store) {
					s.Latency = 5 * time.Millisecond
					grabPlace(t, backendOf(t, s), 30, time.Hour)
					b := backendOf(t, host{s, id, start})
					for n := range processes {
						busy(t, b, 4*n, 4*n+1, 4*n+2, 4*n+3)
						b = backendOf(t, host{s, id, start})
					}
					time.Sleep(10 * time.Millisecond)
					busy(t, b, 20, 21, 22, 23)
					for range 10 {
						time.Sleep(100 * time.Millisecond)
						began := time.Now()
						_, err := inGroup(t, b, 30, time.Minute)
						if took := time.Since(began); took > time.Second || !errors.Is(err, locker.ErrHeld) {
							t.Errorf("after %v: %v", took, err)
						}
					}
				})
			})
		}
	}
}

// What an attempt may have written is undone although its process writes all the time.
func TestAttemptOfABusyProcessIsUndone(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		s.Latency = 5 * time.Millisecond
		b, other := backendOf(t, s), backendOf(t, s)
		grabPlace(t, b, 0, time.Hour)
		busy(t, b, 1, 2, 3, 4)
		time.Sleep(time.Second)
		for n := range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(8+n)*time.Millisecond)
			req := request(time.Minute)
			req.Key = "{k}#20"
			if g, err := b.Acquire(ctx, req); err == nil {
				req.Private = g.Private
				release(t, b, req)
			}
			cancel()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Second)
		release(t, other, grabPlace(t, other, 20, time.Minute))
	})
}

// panics is a store that panics once.
type panics struct {
	record.Store
	at string // when it does so, or "" if it does not
}

func (p *panics) once(op string) {
	if p.at == op {
		p.at = ""
		panic("the store: " + op)
	}
}

func (p *panics) Get(ctx context.Context, name string) ([]byte, string, error) {
	p.once("get")
	return p.Store.Get(ctx, name)
}

func (p *panics) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	p.once("replace")
	return p.Store.Replace(ctx, name, version, text)
}

// A panic of the Store is its caller's. It ends no other call, and leaves no lock behind.
func TestStoreThatPanics(t *testing.T) {
	for _, op := range []string{"get", "replace"} {
		t.Run(op, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				s.Latency = 5 * time.Millisecond
				p := &panics{Store: s}
				b, other := backendOf(t, p), backendOf(t, s)
				release(t, other, grabPlace(t, other, 9, time.Hour))
				if op != "get" {
					grabPlace(t, b, 0, time.Hour)
				}
				p.at = op
				recovered := make(chan any)
				for place := 1; place <= 2; place++ {
					go func() {
						defer func() { recovered <- recover() }()
						req := request(time.Minute)
						req.Key = fmt.Sprintf("{k}#%d", place)
						_, _ = b.Acquire(t.Context(), req)
					}()
				}
				if one, two := <-recovered, <-recovered; (one == nil) == (two == nil) {
					t.Errorf("recovered: %v, %v", one, two)
				}
				time.Sleep(time.Second)
				text := s.Text(groupName)
				_, one := inGroup(t, other, 1, time.Hour)
				_, two := inGroup(t, other, 2, time.Hour)
				if (one == nil) == (two == nil) {
					t.Errorf("the place of the call that has panicked is held, or the other one is not: %s", text)
				}
				grabPlace(t, b, 3, time.Hour)
			})
		})
	}
}

// An attempt whose lock is stored has it, whatever others of its process want to write: they may not come to write it.
func TestLockThatIsStoredIsGranted(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b, other := backendOf(t, s), backendOf(t, s)
		five, nine := grabPlace(t, other, 5, time.Hour), grabPlace(t, b, 9, time.Hour)
		s.Inject(once(recordstore.Fault{Before: time.Second}))
		var wg sync.WaitGroup
		limit := 5 * time.Second // those that came later give up first
		begin := func(f func(ctx context.Context)) {
			limit -= 500 * time.Millisecond
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			wg.Go(func() {
				defer cancel()
				f(ctx)
			})
			time.Sleep(100 * time.Millisecond)
		}
		begin(func(ctx context.Context) { _ = b.Extend(ctx, nine) })
		begin(func(ctx context.Context) { _, _ = b.ForceRelease(ctx, "{k}#1", "") })
		begin(func(ctx context.Context) {
			_, _ = b.AcquireMany(ctx, []backend.Request{
				{Key: "{k}#1", Token: backend.NewToken(), TTL: time.Hour},
				{Key: "{k}#5", Token: backend.NewToken(), TTL: time.Hour},
			}, backend.Choice{})
		})
		var err error
		one := request(time.Hour)
		one.Key = "{k}#1"
		begin(func(ctx context.Context) { _, err = b.Acquire(ctx, one) })
		s.Inject(once(recordstore.Fault{Twice: true, After: time.Second})) // its success is reported as a conflict
		time.Sleep(800 * time.Millisecond)
		release(t, other, five)
		late := 0
		s.Inject(func(r recordstore.Request) (f recordstore.Fault) {
			if r.Op == "replace" { // is what the others want
				late++
				f.Before = time.Hour
			}
			return f
		})
		wg.Wait()
		s.Inject(nil)
		if late == 0 {
			t.Error("the others have written nothing")
		}
		if err != nil {
			t.Errorf("the attempt whose lock is stored: %v", err)
		}
	})
}

// What was read before a call began says nothing about it, although the answer comes later.
func TestLookAfterARelease(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b, other := backendOf(t, s), backendOf(t, s)
		one := grabPlace(t, other, 1, time.Hour)
		s.Inject(once(recordstore.Fault{After: time.Second}))
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = inGroup(t, b, 1, time.Hour) })
		time.Sleep(100 * time.Millisecond)
		release(t, other, one)
		wg.Go(func() {
			if _, err := inGroup(t, b, 1, time.Hour); err != nil {
				t.Errorf("a place that was released before: %v", err)
			}
		})
		wg.Wait()
	})
}
