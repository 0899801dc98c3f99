package once_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/once"
)

// internal/testing/oncetest has the tests on real servers and on a Redlock.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key    = "report"
	window = time.Minute
	skew   = 5 * time.Second
)

// fleet is several instances in virtual time, which share a store, and what they have run.
type fleet struct {
	*testing.T
	backend backend.Backend
	tick    time.Time // that of the test, if there is one only

	mu  sync.Mutex
	ran map[time.Time]int
}

// withFleet runs f in virtual time.
func withFleet(t *testing.T, backend func() backend.Backend, f func(w *fleet)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		f(&fleet{T: t, backend: backend(), tick: time.Now().Add(time.Hour), ran: map[time.Time]int{}})
	})
}

// onBoth runs f as withFleet does, on a store where each tick is a lock, and on one that keeps them in one record.
func onBoth(t *testing.T, f func(w *fleet)) {
	t.Helper()
	for name, backend := range map[string]func() backend.Backend{"memory": inMemory, "a store of records": inRecords} {
		t.Run(name, func(t *testing.T) { withFleet(t, backend, f) })
	}
}

// runs counts that a tick was run.
func (w *fleet) runs(tick time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ran[tick]++
}

func (w *fleet) times(tick time.Time) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ran[tick]
}

// want fails the test unless the tick of the test was run n times.
func (w *fleet) want(n int) {
	w.Helper()
	if got := w.times(w.tick); got != n {
		w.Errorf("the tick was run %d times, want %d", got, n)
	}
}

// instance is one process, with a clock of its own.
type instance struct {
	*fleet
	client *locker.Client
	locker locker.Locker // the client, or what a test has put around it
	ahead  time.Duration // its clock
}

func (w *fleet) instance(ahead time.Duration) *instance {
	c := locker.NewClient(w.backend)
	w.Cleanup(func() { _ = c.Close() })
	return &instance{w, c, c, ahead}
}

// until sleeps until the clock of the instance shows a time.
func (i *instance) until(at time.Time) { time.Sleep(time.Until(at.Add(-i.ahead))) }

// per calls Do for the tick of the test. It counts a run, and then calls f, unless that is nil.
func (i *instance) per(f func(ctx context.Context) error, opts ...once.Option) (once.Outcome, error) {
	return i.at(i.tick, f, opts...)
}

func (i *instance) at(
	tick time.Time, f func(ctx context.Context) error, opts ...once.Option,
) (once.Outcome, error) {
	all := append([]once.Option{
		once.Window(window), once.Skew(skew), once.Clock(func() time.Time { return time.Now().Add(i.ahead) }),
	}, opts...)
	return once.Do(i.Context(), i.locker, key, tick, func(ctx context.Context) error {
		i.runs(tick)
		if f == nil {
			return nil
		}
		return f(ctx)
	}, all...)
}

// is fails the test unless a call had an outcome without an error.
func (w *fleet) is(want once.Outcome) func(got once.Outcome, err error) {
	return func(got once.Outcome, err error) {
		w.Helper()
		if got != want || err != nil {
			w.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}
