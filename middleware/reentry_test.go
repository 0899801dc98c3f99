package middleware_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/middleware/logging"
	"github.com/golocker/locker/middleware/retry"
	"github.com/golocker/locker/middleware/tracing"
)

// circle is a program whose hooks, log handler, spans and callbacks call all that the program has.
type circle struct {
	l        locker.Locker // behind all middleware
	election atomic.Pointer[election.Election]
	lease    atomic.Pointer[locker.Lease] // that hooks ask
	unlocks  atomic.Bool                  // hooks also unlock it

	mu    sync.Mutex
	calls map[string]int // by what has called
}

// call is called by what. It calls everything, which calls it again. So it does that a few times for each what.
func (c *circle) call(what string) {
	c.mu.Lock()
	c.calls[what]++
	n := c.calls[what]
	c.mu.Unlock()
	if n > 5 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if e := c.election.Load(); e != nil {
		_, _ = e.Leading()
	}
	if p := c.lease.Load(); p != nil {
		lease := *p
		_, _, _ = lease.Err(), lease.Until(), lease.Done()
		_, _, _ = lease.Extend(ctx), lease.Extend(ctx, locker.TTL(leaseTTL)), locker.Verify(ctx, lease)
		if c.unlocks.Load() {
			_ = lease.Unlock(ctx)
		}
	}
	if i, ok := locker.As[inspect.Inspector](c.l); ok {
		_, _ = i.Inspect(ctx, "k")
	}
	short, end := context.WithTimeout(ctx, 5*time.Millisecond)
	defer end()
	for _, acquire := range []func() (locker.Lease, error){
		func() (locker.Lease, error) { return c.l.TryLock(ctx, "of "+what) },
		func() (locker.Lease, error) { return c.l.TryLock(ctx, "k") },
		func() (locker.Lease, error) { return c.l.Lock(short, "k") },
		func() (locker.Lease, error) { return locker.LockAll(short, c.l, []string{"k", "of " + what}) },
	} {
		if lease, err := acquire(); err == nil {
			_ = lease.Unlock(ctx)
		}
	}
}

func (c *circle) called(what string) bool { return c.count(what) > 0 }

func (c *circle) count(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[what]
}

func (c *circle) trace(ctx context.Context) context.Context {
	return lockertrace.With(ctx, &lockertrace.Trace{
		Attempted: func(lockertrace.Attempt) { c.call("Attempted") },
		Waiting:   func(lockertrace.Waiting) { c.call("Waiting") },
		Woken:     func(lockertrace.Wake) { c.call("Woken") },
		Voted:     func(v lockertrace.Vote) { c.call(fmt.Sprint("Voted, late: ", v.Late)) },
		Renewed:   func(lockertrace.Renewal) { c.call("Renewed") },
		InDoubt:   func(error) { c.call("InDoubt") },
		Lost:      func(error) { c.call("Lost") },
	})
}

// handler is a log handler that calls everything.
type handler struct{ c *circle }

func (h handler) Enabled(context.Context, slog.Level) bool { h.c.call("Enabled"); return true }
func (h handler) Handle(_ context.Context, r slog.Record) error {
	h.c.call("Handle: " + r.Message)
	return nil
}
func (h handler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h handler) WithGroup(string) slog.Handler      { return h }

// spans has spans that call everything.
type spans struct {
	nooptrace.TracerProvider
	c *circle
}

func (s spans) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{c: s.c} }

type tracer struct {
	nooptrace.Tracer
	c *circle
}

func (t tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.c.call("Start")
	ctx, s := sampled{}.Start(ctx, name, opts...)
	return ctx, span{s, t.c}
}

type span struct {
	trace.Span
	c *circle
}

func (s span) IsRecording() bool                     { return true }
func (s span) AddEvent(string, ...trace.EventOption) { s.c.call("AddEvent") }
func (s span) End(opts ...trace.SpanEndOption)       { s.c.call("End"); s.Span.End(opts...) }
func (s span) AddLink(trace.Link)                    { s.c.call("AddLink") }
func (s span) SpanContext() trace.SpanContext        { return s.Span.SpanContext() }

const leaseTTL = 400 * time.Millisecond

// within fails the test if f does not return.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal(what + " hangs")
	}
}

// until returns when cond is true.
func until(cond func() bool) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		<-tick.C
	}
}

// Everything that a program hands to the packages may call everything of theirs but Close, on whatever goroutine.
func TestEverythingMayCallEverything(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(t *testing.T) (url string, down, up func()){
		"memory": func(*testing.T) (string, func(), func()) {
			return "memory:?prefix=circle", func() {}, func() {}
		},
		"single": func(t *testing.T) (string, func(), func()) {
			s := redistest.Start(t)
			return "redis://" + s.Addr(), s.Pause, s.Resume
		},
		"redlock": func(t *testing.T) (string, func(), func()) {
			s := []*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)}
			each := func(f func(*redistest.Server)) func() { return func() { f(s[0]); f(s[1]) } }
			return "redlock://" + strings.Join([]string{s[0].Addr(), s[1].Addr(), s[2].Addr()}, ","),
				each((*redistest.Server).Pause), each((*redistest.Server).Resume)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, down, up := begin(t)
			client, err := config.Open(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			c := &circle{calls: map[string]int{}}
			c.l = client
			c.l = locker.Wrap(client,
				tracing.New(tracing.WithTracerProvider(spans{c: c}), tracing.WithMeterProvider(listener{}),
					tracing.WithKeyClass(func(string) string { c.call("KeyClass"); return "class" })),
				retry.New(retry.For(time.Second)), logging.New(slog.New(handler{c}), logging.LongWait(time.Millisecond)))
			stop := func() {} // not deferred, because it waits for a store that hangs
			if w, ok := locker.As[inspect.Watcher](c.l); ok {
				if s, err := w.Watch("k", func() { c.call("Watch") }); err == nil {
					stop = s
				}
			}
			c.holds(t)
			for range 20 { // the lock may become free before the call sleeps
				if c.waits(t); c.called("Woken") {
					break
				}
			}
			for range 3 {
				c.loses(t, down, up)
			}
			c.unlocks.Store(true)
			c.holds(t)
			c.loses(t, down, up)
			within(t, "Close", func() {
				stop()
				_ = client.Close()
			})
			for _, what := range []string{
				"Attempted", "Waiting", "Woken", "Renewed", "Lost", "Enabled", "Start", "AddEvent", "End", "KeyClass",
				"OnElected", "OnDemoted", "OnNewLeader", "OnError", "Healthy", "OnOverrun", "Handle: lock lost",
			} {
				if !c.called(what) {
					t.Errorf("nothing has called %s", what)
				}
			}
			if name != "memory" && !c.called("InDoubt") || name == "memory" && !c.called("Watch") {
				t.Error("nothing has called InDoubt, or Watch")
			}
			if name == "redlock" && !c.called("Voted, late: false") {
				t.Error("nothing has called Voted")
			}
		})
	}
}

func (c *circle) lock(t *testing.T, opts ...locker.Option) locker.Lease {
	t.Helper()
	var lease locker.Lease
	within(t, "Lock", func() {
		for lease == nil { // a hook may have the lock
			lease, _ = c.l.Lock(c.trace(t.Context()), "k", opts...)
		}
	})
	c.lease.Store(&lease)
	return lease
}

// holds has a lease that is renewed and unlocked.
func (c *circle) holds(t *testing.T) {
	lease := c.lock(t, locker.TTL(leaseTTL))
	within(t, "a renewal", func() {
		until(func() bool { return c.called("Renewed") || lease.Err() != nil })
	})
	within(t, "Unlock", func() { _ = lease.Unlock(c.trace(t.Context())) })
}

// waits has a call that waits for a lock.
func (c *circle) waits(t *testing.T) {
	first := c.lock(t)
	waited := c.count("Waiting")
	within(t, "a call that waits", func() {
		got := make(chan locker.Lease)
		go func() {
			lease, _ := c.l.Lock(c.trace(context.Background()), "k")
			got <- lease
		}()
		until(func() bool { return c.count("Waiting") > waited || first.Err() != nil })
		_ = first.Unlock(context.Background())
		if lease := <-got; lease != nil {
			_ = lease.Unlock(context.Background())
		}
	})
}

// loses has a leader that loses its lease while everybody asks. A renewal fails before, if the store can be stopped.
func (c *circle) loses(t *testing.T, down, up func()) {
	ctx, cancel := context.WithCancel(c.trace(t.Context()))
	defer cancel()
	elected := make(chan context.Context, 1)
	e := election.New(c.l, "k", election.Config{
		OnElected: func(ctx context.Context, term election.Term) error {
			c.lease.Store(&term.Lease)
			c.call("OnElected")
			select {
			case elected <- ctx:
			default:
			}
			<-ctx.Done()
			time.Sleep(2 * leaseTTL) // longer than it may
			return nil
		},
		OnDemoted:      func(election.Term, error) { c.call("OnDemoted") },
		OnNewLeader:    func(election.Leader) { c.call("OnNewLeader") },
		OnError:        func(error) { c.call("OnError") },
		OnOverrun:      func(error) { c.call("OnOverrun") },
		Healthy:        func(context.Context) error { c.call("Healthy"); return nil },
		HealthInterval: 10 * time.Second,
		Options:        []locker.Option{locker.TTL(leaseTTL), locker.MaxHold(2 * leaseTTL)},
	})
	c.election.Store(e)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = e.Run(ctx)
	}()
	within(t, "the election", func() {
		held := <-elected
		until(func() bool { return c.called("OnNewLeader") || held.Err() != nil })
		down()
		var asking sync.WaitGroup
		for range 4 { // whoever notices the loss calls the hooks
			asking.Go(func() {
				for leads := true; leads; {
					_, leads = e.Leading()
				}
			})
			asking.Go(func() {
				for held.Err() == nil {
				}
			})
		}
		asking.Wait()
		up()
	})
	cancel()
	within(t, "Run", func() { <-ended })
}
