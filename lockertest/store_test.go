package lockertest_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/clientwait"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertest"
	"github.com/golocker/locker/memory"
)

func request(key string) backend.Request {
	return backend.Request{Key: key, Token: backend.NewToken(), TTL: time.Minute}
}

// operations returns each method of s that is a request to the store, by its name.
func operations(ctx context.Context, t *testing.T, s *lockertest.Store) map[string]func() error {
	t.Helper()
	held, released, taken, passed := request("held"), request("released"), request("taken"), request("passed")
	from := request("resumed")
	from.Token = "from"
	for _, req := range []*backend.Request{&held, &released, &taken, &passed, &from} {
		g, err := s.Acquire(ctx, *req)
		if err != nil {
			t.Fatal(err)
		}
		req.Fence = g.Fence
	}
	return map[string]func() error{
		"Acquire": func() error {
			_, err := s.Acquire(ctx, request("acquired"))
			return err
		},
		"AcquireMany": func() error {
			_, err := s.AcquireMany(ctx, []backend.Request{request("many"), request("more")}, backend.Choice{})
			return err
		},
		"Queue": func() error {
			req := request("queued")
			wait, _ := clientwait.New(ctx, locker.Patience(10*time.Second))
			_, err := s.Queue(ctx, req, wait)
			return err
		},
		"Extend":  func() error { return s.Extend(ctx, held) },
		"Verify":  func() error { return s.Verify(ctx, held) },
		"Release": func() error { return s.Release(ctx, released) },
		"Inspect": func() error {
			_, err := s.Inspect(ctx, "held")
			return err
		},
		"List": func() error {
			for _, err := range s.List(ctx, "held") {
				return err
			}
			return nil
		},
		"RaiseFences": func() error { return s.RaiseFences(ctx, 1) },
		"Export":      func() error { return s.Export(ctx, passed, "to") },
		"Resume": func() error {
			_, err := s.Resume(ctx, request("resumed"), "from")
			return err
		},
		"ForceRelease": func() error {
			_, err := s.ForceRelease(ctx, "taken", "")
			return err
		},
	}
}

// Every method of memory.Backend that takes a context is one of the operations, so none goes past a fault.
func TestEveryOperationMeetsTheFault(t *testing.T) {
	backend, store := reflect.TypeFor[*memory.Backend](), reflect.TypeFor[*lockertest.Store]()
	all := operations(t.Context(), t, lockertest.NewStore())
	for i := range backend.NumMethod() {
		m := backend.Method(i)
		if _, ok := store.MethodByName(m.Name); !ok {
			t.Errorf("Store has no method %s", m.Name)
		}
		takesContext := m.Type.NumIn() > 1 && m.Type.In(1) == reflect.TypeFor[context.Context]()
		if _, ok := all[m.Name]; takesContext && !ok {
			t.Errorf("the operation %s is not tested", m.Name)
		}
	}
	for name := range all {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := lockertest.NewStore()
				call := operations(t.Context(), t, s)[name]
				s.Down()
				start := time.Now()
				if err := call(); !errors.Is(err, locker.ErrUnavailable) || time.Since(start) > 0 {
					t.Errorf("while the store is down: %v after %v, want ErrUnavailable at once", err, time.Since(start))
				}
				s = lockertest.NewStore()
				call = operations(t.Context(), t, s)[name]
				s.Delay(time.Second)
				start = time.Now()
				if err := call(); err != nil || time.Since(start) != time.Second {
					t.Errorf("with a delay of 1 s: %v after %v", err, time.Since(start))
				}
			})
		})
	}
}

// A fault that begins, or ends, while a request is under way concerns that request.
func TestRequestsUnderWay(t *testing.T) {
	for _, c := range []struct {
		name  string
		begin func(s *lockertest.Store)
		then  func(s *lockertest.Store)
		after time.Duration
		want  error
	}{
		{"an outage begins", nil, (*lockertest.Store).Down, time.Second, locker.ErrUnavailable},
		{"the delay ends", nil, func(s *lockertest.Store) { s.Delay(0) }, time.Second, nil},
		{"the delay grows", nil, func(s *lockertest.Store) { s.Delay(4 * time.Second) }, 4 * time.Second, nil},
		{"the delay grows above the timeout", nil, func(s *lockertest.Store) { s.Delay(time.Hour) }, 5 * time.Second,
			locker.ErrUnavailable},
	} {
		virtual.Test(t, func(t *testing.T) {
			s := lockertest.NewStore()
			s.Delay(2 * time.Second)
			time.AfterFunc(time.Second, func() { c.then(s) })
			start := time.Now()
			_, err := s.Acquire(t.Context(), request("k"))
			if !errors.Is(err, c.want) || time.Since(start) != c.after {
				t.Errorf("%s: %v after %v, want %v after %v", c.name, err, time.Since(start), c.want, c.after)
			}
		})
	}
}

// A caller that waits for the lock tolerates an outage for its patience, and gets nothing during it.
func TestWaiterDuringAnOutage(t *testing.T) {
	for _, c := range []struct {
		outage time.Duration
		lost   bool // during the outage
		want   error
	}{
		{5 * time.Second, true, nil},
		{15 * time.Second, true, locker.ErrUnavailable},
		{15 * time.Second, false, locker.ErrUnavailable},
	} {
		virtual.Test(t, func(t *testing.T) {
			s := lockertest.NewStore()
			a, b := locker.NewClient(s), locker.NewClient(s)
			if _, err := a.Lock(t.Context(), "k", locker.NoRenewal(), locker.TTL(time.Minute)); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			time.AfterFunc(20*time.Second, func() {
				s.Down()
				if !c.lost {
					return
				}
				if err := s.Lose(t.Context(), "k"); err != nil { // the waiter cannot be told
					t.Error(err)
				}
			})
			time.AfterFunc(20*time.Second+c.outage, s.Up)
			lease, err := b.Lock(t.Context(), "k", locker.Patience(10*time.Second))
			took := time.Since(start)
			if !errors.Is(err, c.want) || took != 20*time.Second+min(c.outage, 10*time.Second) {
				t.Errorf("an outage of %v: %v after %v", c.outage, err, took)
			}
			if err == nil {
				_ = lease.Unlock(t.Context())
			}
			time.Sleep(time.Minute) // the store is up
			i, err := a.Inspect(t.Context(), "k")
			if err != nil || i.State != "free" || i.Waiting != 0 {
				t.Errorf("left: %+v, %v", i, err)
			}
			_, _ = a.Close(), b.Close()
		})
	}
}

// A release that failed is made up for when the store is back, or when it answers.
func TestReleasesAreMadeUpFor(t *testing.T) {
	for what, fault := range map[string]func(s *lockertest.Store) (mend func()){
		"an outage": func(s *lockertest.Store) func() {
			s.Down()
			return s.Up
		},
		"a hang": func(s *lockertest.Store) func() {
			s.Delay(time.Hour)
			return func() { s.Delay(0) }
		},
		"a slow answer": func(s *lockertest.Store) func() {
			s.Delay(1500 * time.Millisecond)
			return func() { time.Sleep(500 * time.Millisecond) }
		},
	} {
		virtual.Test(t, func(t *testing.T) {
			s := lockertest.NewStore()
			l := locker.NewClient(s)
			defer l.Close()
			lease, err := l.Lock(t.Context(), "k", locker.TTL(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			mend := fault(s)
			if err := lease.Unlock(t.Context()); !errors.Is(err, locker.ErrUnavailable) {
				t.Errorf("Unlock during %s: %v", what, err)
			}
			synctest.Wait()
			mend()
			synctest.Wait()
			if next, err := l.TryLock(t.Context(), "k"); err != nil {
				t.Errorf("after %s: %v", what, err)
			} else {
				_ = next.Unlock(t.Context())
			}
		})
	}
}

// A loss is reported at once. During an outage it is reported when the store is back.
func TestLose(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := lockertest.NewStore()
		l := locker.NewClient(s)
		defer l.Close()
		lost := make(chan error, 1)
		go func() { lost <- s.Lose(t.Context(), "k") }()
		other, err := l.TryLock(t.Context(), "other")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case err := <-lost:
			t.Fatalf("Lose of a free lock: %v", err)
		default:
		}
		lease, err := l.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := <-lost; err != nil || !errors.Is(lease.Err(), locker.ErrLost) {
			t.Errorf("Lose: %v; the lease ended with %v", err, lease.Err())
		}
		if lease, err = l.TryLock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		s.Down()
		if err := s.Lose(t.Context(), "k"); err != nil || lease.Err() != nil {
			t.Errorf("Lose while the store is down: %v; the lease ended with %v", err, lease.Err())
		}
		s.Up()
		if !errors.Is(lease.Err(), locker.ErrLost) || other.Err() != nil {
			t.Errorf("the lease ended with %v, and another with %v", lease.Err(), other.Err())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Lose(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Lose of a lock that nobody has: %v", err)
		}
	})
}

// A caller that watches a lock hears of nothing during an outage, and of something at its end.
func TestWatchDuringAnOutage(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := lockertest.NewStore()
		l := locker.NewClient(s)
		defer l.Close()
		if _, err := l.TryLock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		told := 0
		stop, err := s.Watch("k", func() { told++ })
		if err != nil {
			t.Fatal(err)
		}
		s.Down()
		if err := s.Lose(t.Context(), "k"); err != nil || told > 0 {
			t.Errorf("told %d times while the store is down: %v", told, err)
		}
		s.Up()
		if told == 0 {
			t.Error("not told after the outage")
		}
		stop()
		told = 0
		s.Down()
		s.Up()
		if told > 0 {
			t.Error("told after stop")
		}
	})
}

// A holder is not told that others wait while the store is down. When it is back, they wait again, and it is told.
func TestWantedAfterAnOutage(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := lockertest.NewStore()
		a, b := locker.NewClient(s), locker.NewClient(s)
		lease, err := a.Lock(t.Context(), "k", locker.TTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error)
		go func() {
			_, err := b.Lock(t.Context(), "k")
			got <- err
		}()
		synctest.Wait()
		s.Down()
		wanted := locker.Wanted(lease)
		synctest.Wait()
		select {
		case <-wanted:
			t.Error("told while the store was down")
		default:
		}
		s.Up()
		<-wanted
		if err := errors.Join(lease.Unlock(t.Context()), <-got, a.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
}
