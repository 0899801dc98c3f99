package alerts

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/lockertest"
	"github.com/golocker/locker/middleware/tracing"
	"github.com/golocker/locker/redlock"
)

// program uses locks in all ways that are measured, on a store and on a quorum of three nodes.
type program struct {
	store    *lockertest.Store
	nodeDown atomic.Bool // one of the three
	locks    locker.Locker
	quorum   locker.Locker
	leads    *election.Election
	stubborn atomic.Bool // the next leader that resigns does not stop in time
	metrics  *httptest.Server
	wg       sync.WaitGroup
	ctx      context.Context
}

// begin starts a program that works until the test ends.
func begin(t *testing.T) *program {
	registry := prometheus.NewRegistry()
	exporter, err := promexporter.New(promexporter.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	measure := tracing.New(tracing.WithMeterProvider(meters))

	ctx, cancel := context.WithCancel(context.Background())
	p := &program{store: lockertest.NewStore(), ctx: ctx}
	client, quorum := locker.NewClient(p.store), p.newQuorum()
	p.locks, p.quorum = locker.Wrap(client, measure), locker.Wrap(quorum, measure)
	p.leads = election.New(p.locks, "leader", tracing.InstrumentElection(election.Config{
		OnElected: p.lead, OnError: func(error) {}, Options: []locker.Option{locker.TTL(4 * time.Second)},
	}))
	p.metrics = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		format := expfmt.NewFormat(expfmt.TypeTextPlain)
		w.Header().Set("Content-Type", string(format))
		families, err := registry.Gather()
		if err != nil {
			t.Error(err)
		}
		for _, f := range families {
			if err := expfmt.NewEncoder(w, format).Encode(f); err != nil {
				return
			}
		}
	}))
	t.Cleanup(func() {
		cancel()
		p.wg.Wait()
		_, _ = client.Close(), quorum.Close()
		p.metrics.Close()
	})

	for range 2 { // each wants it for more than half of the time, so they meet
		p.every(100*time.Millisecond, func() { p.hold(p.locks, "till", 150*time.Millisecond) })
	}
	p.every(100*time.Millisecond, func() { p.hold(p.quorum, "till", 0) })
	p.wg.Go(func() { _ = p.leads.Run(p.ctx) })
	return p
}

func (p *program) newQuorum() *locker.Client {
	var nodes []drivers.Driver
	for i := range 3 {
		nodes = append(nodes, simnode.New().Driver(func(_ context.Context, _ []drivers.Command,
			execute func() []drivers.Reply) ([]drivers.Reply, error) {
			if i == 0 && p.nodeDown.Load() {
				return nil, drivers.NotSent(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
			}
			return execute(), nil
		}))
	}
	return redlock.New(nodes, redlock.Names("a", "b", "c"), redlock.Logger(slog.New(slog.DiscardHandler)))
}

// every calls f again and again, with pauses.
func (p *program) every(d time.Duration, f func()) {
	p.wg.Go(func() {
		for pause(p.ctx, d) {
			f()
		}
	})
}

// pause reports whether ctx has not ended. Prometheus is a process that has no virtual time.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *program) hold(l locker.Locker, key string, d time.Duration, opts ...locker.Option) {
	lease, err := l.Lock(p.ctx, key, opts...)
	if err != nil {
		return
	}
	pause(p.ctx, d)
	_ = lease.Unlock(context.Background())
}

// lead leads for two seconds.
func (p *program) lead(ctx context.Context, term election.Term) error {
	if pause(ctx, 2*time.Second) {
		return nil
	}
	if p.stubborn.Swap(false) {
		pause(p.ctx, time.Until(term.Lease.Until())+5*time.Second)
	}
	return nil
}

// fail brings the program into every trouble that there is an alert for.
func (p *program) fail() {
	p.nodeDown.Store(true)

	// Some callers wait for more than ten seconds, one after the other: what is counted before Prometheus has read a
	// series for the first time is no increase to it.
	holds := make(chan struct{})
	p.wg.Go(func() {
		lease, err := p.locks.Lock(p.ctx, "stuck")
		close(holds)
		if err == nil {
			pause(p.ctx, 20*time.Second)
			_ = lease.Unlock(context.Background())
		}
	})
	<-holds
	for i := range 30 {
		p.wg.Go(func() {
			pause(p.ctx, time.Duration(i)*150*time.Millisecond)
			ctx, cancel := context.WithTimeout(p.ctx, 11*time.Second)
			defer cancel()
			if lease, err := p.locks.Lock(ctx, "stuck"); err == nil {
				_ = lease.Unlock(context.Background())
			}
		})
	}

	// Work takes nearly as long as its lease.
	p.every(0, func() {
		p.hold(p.locks, "slow", 60*time.Millisecond, locker.TTL(100*time.Millisecond), locker.NoRenewal())
	})

	// The store is down for longer than a lease is valid.
	p.wg.Go(func() {
		lease, err := p.locks.Lock(p.ctx, "lost", locker.TTL(time.Second))
		if err != nil {
			return
		}
		pause(p.ctx, time.Second) // for renewals that succeed
		p.store.Down()
		<-lease.Done()
		pause(p.ctx, 5*time.Second) // for calls that fail, which Prometheus reads several times
		p.store.Up()
	})
	p.every(50*time.Millisecond, func() {
		if lease, err := p.locks.TryLock(p.ctx, "try"); err == nil {
			_ = lease.Unlock(context.Background())
		}
	})

	// One leader does not stop in time, once.
	p.stubborn.Store(true)
	p.every(time.Second, func() { _ = p.leads.Resign(p.ctx) })
}
