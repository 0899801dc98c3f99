package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/tracing"
)

// function is a Locker whose behaviour is defined by a test.
type function func(ctx context.Context, key string) (locker.Lease, error)

func (f function) Lock(ctx context.Context, key string, _ ...locker.Option) (locker.Lease, error) {
	return f(ctx, key)
}

func (f function) TryLock(ctx context.Context, key string, _ ...locker.Option) (locker.Lease, error) {
	return f(ctx, key)
}

func TestAsSeesThrough(t *testing.T) {
	c := memory.New()
	l := newRecorder(t).wrap(newRecorder(t).wrap(c))
	if got, ok := locker.As[*locker.Client](l); !ok || got != c {
		t.Error("the Client is hidden")
	}
	if _, ok := locker.As[io.Closer](l); !ok {
		t.Error("io.Closer is hidden")
	}
	_ = c.Close()
}

// Spans that inner Lockers start in Lock, Extend and Unlock are children of the spans of the middleware.
func TestContextCarriesTheSpan(t *testing.T) {
	r := newRecorder(t)
	b := &spying{Backend: memory.NewBackend()}
	c := locker.NewClient(b)
	defer c.Close()
	ctx := r.request()
	lease := must(r.wrap(c).TryLock(ctx, key))
	_ = lease.Extend(ctx)
	_ = lease.Unlock(ctx)
	ended := r.spans.GetSpans()
	if len(ended) != 3 || len(b.spans) != 3 {
		t.Fatalf("%d spans, %d calls of the backend", len(ended), len(b.spans))
	}
	for i, s := range ended {
		if s.SpanContext.SpanID() != b.spans[i].SpanID() {
			t.Errorf("the backend is not called in the context of %s", s.Name)
		}
	}
}

// spying records the spans of the contexts that it receives.
type spying struct {
	backend.Backend
	spans []trace.SpanContext
}

func (s *spying) see(ctx context.Context) {
	s.spans = append(s.spans, trace.SpanContextFromContext(ctx))
}

func (s *spying) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	s.see(ctx)
	return s.Backend.Acquire(ctx, req)
}

func (s *spying) Extend(ctx context.Context, req backend.Request) error {
	s.see(ctx)
	return s.Backend.Extend(ctx, req)
}

func (s *spying) Release(ctx context.Context, req backend.Request) error {
	s.see(ctx)
	return s.Backend.Release(ctx, req)
}

// Errors are returned unchanged, and the hooks of a Trace in the caller's context are called.
func TestErrorsAndTheCallersTracePassThrough(t *testing.T) {
	r := newRecorder(t)
	want := errors.New("of my own")
	l := r.wrap(function(func(context.Context, string) (locker.Lease, error) { return nil, want }))
	if lease, err := l.Lock(t.Context(), key); lease != nil || err != want {
		t.Errorf("%v, %v", lease, err)
	}
	c := memory.New()
	defer c.Close()
	attempts := 0
	ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Attempted: func(lockertrace.Attempt) { attempts++ }})
	if _, err := r.wrap(c).TryLock(ctx, key); err != nil || attempts != 1 {
		t.Errorf("%v, after %d attempts", err, attempts)
	}
}

func TestKeysByOptIn(t *testing.T) {
	class := func(key string) string {
		kind, _, _ := strings.Cut(key, ":")
		return kind
	}
	for _, tt := range []struct {
		name           string
		opt            tracing.Option
		spans, metrics string // an attribute that all of them have; empty: none has the key
	}{
		{"off", tracing.WithAttributes(), "", ""},
		{"full", tracing.WithKey(tracing.Full), "locker.key=orders:42", ""},
		{"hashed", tracing.WithKey(tracing.Hashed), "locker.key=8a5f217ddb0c9f03", ""},
		{"class", tracing.WithKeyClass(class), "locker.key.class=orders", "key.class=orders"},
		{"no class", tracing.WithKeyClass(func(string) string { return "" }), "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRecorder(t)
			c := memory.New()
			defer c.Close()
			l := r.wrap(c, tt.opt)
			lease := must(l.Lock(t.Context(), key))
			_, _ = l.TryLock(t.Context(), key)
			_ = lease.Extend(t.Context())
			_ = lease.Unlock(t.Context())
			for _, s := range r.spans.GetSpans() {
				got := ""
				for _, a := range s.Attributes {
					if strings.HasPrefix(string(a.Key), "locker.key") {
						got += string(a.Key) + "=" + a.Value.Emit()
					}
				}
				if got != tt.spans {
					t.Errorf("%s has %q", s.Name, got)
				}
			}
			for line := range strings.Lines(r.figures()) {
				if strings.Contains(line, "key") != (tt.metrics != "") || !strings.Contains(line, tt.metrics) {
					t.Error(line)
				}
			}
		})
	}
}

// Metrics never have the label, because each would be a series.
func TestHoldersAreOnSpans(t *testing.T) {
	for _, tt := range []struct {
		name string
		opts []tracing.Option
		want int
	}{{"default", nil, 2}, {"without", []tracing.Option{tracing.WithoutHolder()}, 0}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRecorder(t)
			c := memory.New()
			defer c.Close()
			l := r.wrap(c, tt.opts...)
			lease := must(l.Lock(t.Context(), key, locker.Label("web-7")))
			_, _ = l.TryLock(t.Context(), key)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, _ = l.Lock(lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { cancel() }}), key)
			_ = lease.Unlock(t.Context())
			found := 0
			for _, s := range r.spans.GetSpans() {
				found += strings.Count(list(s.Attributes), "holder=web-7")
				for _, e := range s.Events {
					if strings.Contains(list(e.Attributes), "web-7") {
						t.Errorf("the event %s has the label", e.Name)
					}
				}
			}
			if found != tt.want {
				t.Errorf("%d spans have the label, want %d", found, tt.want)
			}
			if strings.Contains(r.figures(), "web-7") {
				t.Error("a metric has the label")
			}
		})
	}
}

func TestAttributesAreOnEverything(t *testing.T) {
	_, _ = record(t, func(r *recorder) {
		store := &store{Backend: memory.NewBackend(), tokens: &r.tokens}
		c := locker.NewClient(store)
		l := r.wrap(c, tracing.WithAttributes(attribute.String("shop", "berlin")),
			tracing.WithAttributes(attribute.Int("shard", 7)))
		lease := must(l.Lock(r.request(), key))
		_, _ = l.TryLock(r.request(), key)
		store.fail("extend")
		<-lease.Done()
		synctest.Wait() // the loss is told
		_ = lease.Unlock(r.request())
		_ = c.Close()
		names := map[string]bool{}
		for _, s := range r.spans.GetSpans() {
			names[s.Name] = true
			if got := list(s.Attributes); !strings.Contains(got, "shop=berlin") || !strings.Contains(got, "shard=7") {
				r.Errorf("%s: %s", s.Name, got)
			}
		}
		if len(names) != 4 {
			r.Errorf("spans: %v", names)
		}
		for line := range strings.Lines(r.figures()) {
			if !strings.Contains(line, "shop=berlin") || !strings.Contains(line, "shard=7") {
				r.Error(line)
			}
		}
	})
}

// A span does not grow without limit if a call waits for a long time, or if hooks are called concurrently or after the
// end.
func TestEventsAreBounded(t *testing.T) {
	r := newRecorder(t)
	var hooks *lockertrace.Trace
	storm := func() {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 100 {
					hooks.Attempted(lockertrace.Attempt{Err: locker.ErrHeld})
					hooks.Waiting(lockertrace.Waiting{})
					hooks.Woken(lockertrace.Wake{Reason: lockertrace.WakePoll})
					hooks.Voted(lockertrace.Vote{Node: "a", Op: "acquire"})
					hooks.Renewed(lockertrace.Renewal{Err: locker.ErrUnavailable})
				}
			})
		}
		wg.Wait()
	}
	l := r.wrap(function(func(ctx context.Context, _ string) (locker.Lease, error) {
		hooks = lockertrace.From(ctx)
		storm()
		return still{}, nil
	}))
	lease := must(l.Lock(t.Context(), key))
	var wg sync.WaitGroup
	wg.Go(storm)
	wg.Go(func() { hooks.Lost(&locker.LostError{Reason: locker.LostExpired}) })
	wg.Go(func() { _ = lease.Unlock(t.Context()) })
	wg.Wait()
	spans := r.spans.GetSpans()
	for _, s := range spans {
		if s.Name == "locker.lock" {
			if len(s.Events) != 64 {
				t.Errorf("%d events", len(s.Events))
			}
			if got := list(s.Attributes); !strings.Contains(got, "attempts=800") ||
				!strings.Contains(got, "events.dropped=2337") {
				t.Error(got)
			}
		}
	}
	if len(spans) > 4 { // lock, unlock, one renewal and perhaps the loss
		t.Errorf("%d spans", len(spans))
	}
	points := r.collect()
	for name, want := range map[string]string{
		"locker.lock.waiters":       "{} 0",
		"locker.lock.contentions":   "{operation=lock} 1",
		"locker.lease.active":       "{} 0",
		"locker.node.vote.duration": "{node.name=a operation=acquire outcome=agreed} 1600: 0",
		"locker.lease.renewals":     "{error.type=unavailable outcome=error} 1600",
	} {
		if len(points[name]) != 1 || points[name][0] != want {
			t.Errorf("%s: %v, want %s", name, points[name], want)
		}
	}
	if n := len(points["locker.lease.hold.duration"]); n != 1 {
		t.Errorf("the lease has ended %d times", n)
	}
}

// A lease may be lost before the call has returned. A lease that only an inner middleware has seen does not count.
func TestLossBeforeTheCallReturns(t *testing.T) {
	for name, want := range map[string]map[string]string{
		"granted": {
			"locker.lease.active": "{} 0", "locker.lease.lost": "{lost.reason=expired} 1",
			"locker.lease.hold.duration": "{lost.reason=expired outcome=lost} 1: 0",
		},
		"failed": {},
	} {
		_, _ = record(t, func(r *recorder) {
			r.tokens.note("none")
			l := r.wrap(function(func(ctx context.Context, _ string) (locker.Lease, error) {
				lockertrace.From(ctx).Lost(&locker.LostError{Reason: locker.LostExpired})
				if name == "failed" {
					return nil, locker.ErrUnavailable
				}
				return still{}, nil
			}))
			if lease, err := l.Lock(r.request(), key); err == nil {
				_ = lease.Unlock(r.request())
			}
			points := r.collect()
			for _, i := range []string{"locker.lease.active", "locker.lease.lost", "locker.lease.hold.duration"} {
				if got := strings.Join(points[i], ", "); got != want[i] {
					t.Errorf("%s: %s is %q, want %q", name, i, got, want[i])
				}
			}
		})
	}
}

// A class with more values than the middleware keeps sets of attributes for is still measured.
func TestTooManyClasses(t *testing.T) {
	r := newRecorder(t)
	l := r.wrap(instant{still{}}, tracing.WithKeyClass(tracing.Full))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 100 {
				_ = must(l.Lock(t.Context(), fmt.Sprint(g, "-", i))).Unlock(t.Context())
			}
		})
	}
	wg.Wait()
	if n := len(r.collect()["locker.lease.remaining"]); n != 400 {
		t.Errorf("%d classes were measured", n)
	}
}

// The status of a span has the text of the error, without the key.
func TestStatusNamesNoKey(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&locker.Error{Op: "lock", Key: key, Err: fmt.Errorf("%w: connection refused", locker.ErrUnavailable)},
			"lock store unavailable: connection refused"},
		{&locker.Error{Op: "lock", Key: key, Err: fmt.Errorf("%w: SET lock:%s failed", locker.ErrUnavailable, key)},
			"unavailable"},
		{fmt.Errorf("cannot lock %q", key), "_OTHER"},
	} {
		r := newRecorder(t)
		l := r.wrap(function(func(context.Context, string) (locker.Lease, error) { return nil, tt.err }))
		_, _ = l.Lock(t.Context(), key)
		if got := r.spans.GetSpans()[0].Status.Description; got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}

// A store that does not answer is an error, also for callers with a deadline. A caller that cancels its context gets no
// error status.
func TestEndOfTheContextWhileTheStoreIsSilent(t *testing.T) {
	spans, _ := record(t, func(r *recorder) {
		r.tokens.note("none")
		l := r.wrap(function(func(ctx context.Context, _ string) (locker.Lease, error) {
			<-ctx.Done()
			return nil, fmt.Errorf("%w: %w", ctx.Err(), locker.ErrUnavailable)
		}))
		ctx, cancel := context.WithTimeout(r.request(), time.Second)
		defer cancel()
		_, _ = l.Lock(ctx, key)
		ctx, cancel = context.WithCancel(r.request())
		time.AfterFunc(time.Second, cancel)
		_, _ = l.Lock(ctx, key)
	})
	same(t, "spans", spans, `
		locker.lock 0s-1s in request Error: context deadline exceeded: lock store unavailable
			attempts=0 error.type=unavailable operation=lock outcome=error
		locker.lock 1s-2s in request
			attempts=0 operation=lock outcome=cancelled
	`)
}
