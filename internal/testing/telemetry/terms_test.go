package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/tracing"
)

// lead is a candidate whose terms end in all ways: it returns, it fails, it resigns, it loses the lock, and its work
// does not stop when Run ends. The lock itself is not traced.
func lead(r *recorder, s *store, opts ...tracing.Option) {
	c := locker.NewClient(s)
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	opts = append(opts, tracing.WithTracerProvider(r.tracers), tracing.WithMeterProvider(r.meters))
	terms := 0
	e := election.New(c, key, tracing.InstrumentElection(election.Config{
		OnElected: func(ctx context.Context, _ election.Term) error {
			switch terms++; terms {
			case 1:
				time.Sleep(time.Second)
				return nil
			case 2:
				time.Sleep(time.Second)
				return fmt.Errorf("%s is locked", key)
			}
			<-ctx.Done()
			if terms == 5 {
				time.Sleep(15 * time.Second)
			}
			return nil
		},
		OnError: func(error) {},
		Options: []locker.Option{locker.TTL(9 * time.Second)},
	}, opts...))
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	time.Sleep(5 * time.Second)
	_ = e.Resign(ctx)
	time.Sleep(time.Second)
	if _, err := c.ForceRelease(ctx, key, ""); err != nil {
		r.Error(err)
	}
	time.Sleep(10 * time.Second)
	cancel()
	if err := <-ended; err != nil {
		r.Error(err)
	}
}

func TestTerms(t *testing.T) {
	spans, metrics := record(t, func(r *recorder) { lead(r, &store{Backend: memory.NewBackend(), tokens: &r.tokens}) })
	same(t, "spans", spans, `
		locker.term 0s-1s
			fence=1 outcome=returned
		locker.term 1.1s-2.1s Error: _OTHER
			fence=2 outcome=error
		locker.term 2.2s-5s
			fence=3 outcome=resigned
		locker.term 5.1s-8.1s Error: lock lost: gone
			fence=4 outcome=lost
		locker.term 8.2s-31s
			fence=5 outcome=ended
	`)
	same(t, "metrics", metrics, `
		term.active {} 0
		term.duration {outcome=ended} 1: 22.8
		term.duration {outcome=error} 1: 1
		term.duration {outcome=lost} 1: 3
		term.duration {outcome=resigned} 1: 2.8
		term.duration {outcome=returned} 1: 1
		term.overruns {} 1
	`)
}

// A program that has given the providers of its Locker need not give them again.
func TestTermsAreRecordedWhereTheLockIs(t *testing.T) {
	for name, opts := range map[string][]tracing.Option{
		"without options": nil, "with another option": {tracing.WithKeyClass(func(string) string { return "orders" })},
	} {
		t.Run(name, func(t *testing.T) {
			spans, metrics := record(t, func(r *recorder) {
				c := locker.NewClient(&store{Backend: memory.NewBackend(), tokens: &r.tokens})
				defer c.Close()
				l := locker.Wrap(c, tracing.New(tracing.WithTracerProvider(r.tracers), tracing.WithMeterProvider(r.meters)))
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				_ = election.Run(ctx, l, key, tracing.InstrumentElection(election.Config{
					OnElected: func(context.Context, election.Term) error {
						cancel()
						time.Sleep(15 * time.Second) // which is an overrun
						return nil
					},
				}, opts...))
			})
			if !strings.Contains(spans, "locker.term") || !strings.Contains(metrics, "term.duration") ||
				!strings.Contains(metrics, "term.overruns") || strings.Contains(metrics, "orders") != (opts != nil) {
				t.Errorf("spans: %s\nmetrics: %s", spans, metrics)
			}
		})
	}
}

// A panic of OnElected ends the term, and reaches the caller.
func TestTermThatPanics(t *testing.T) {
	_, metrics := record(t, func(r *recorder) {
		s := &store{Backend: memory.NewBackend(), tokens: &r.tokens}
		c := locker.NewClient(s)
		defer c.Close()
		defer func() {
			if recover() == nil {
				t.Error("the panic is gone")
			}
		}()
		_ = election.Run(context.Background(), c, key, tracing.InstrumentElection(election.Config{
			OnElected: func(context.Context, election.Term) error { panic(errors.New("oops")) },
		}, tracing.WithTracerProvider(r.tracers), tracing.WithMeterProvider(r.meters),
			tracing.WithKeyClass(func(string) string { return "orders" })))
	})
	same(t, "metrics", metrics, `
		term.active {key.class=orders} 0
		term.duration {key.class=orders outcome=panicked} 1: 0
	`)
}
