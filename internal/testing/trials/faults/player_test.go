package faults

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/internal/testing/trials/history"
	"github.com/golocker/locker/redlock"
	"github.com/golocker/locker/single"
)

// plan says what a player does. Players in other processes get it as JSON.
type plan struct {
	ID, Players int
	Driver      string
	Nodes       []string // addresses of its own proxies, or of the servers of a cluster
	Cluster     bool     // Nodes are those of a cluster
	Sentinel    bool     // Nodes has the address of a sentinel
	Password    bool     // whether the client gives a password
	Short, Long time.Duration
	Resource    string
}

// The keys of a player are of three kinds.
const (
	loads = 2 // load/N: all players acquire the lock, hold it for some ms with a long TTL, and release it
	// held/ID: the player holds the lock with a short TTL, which is renewed. The next player waits for it all the time.
	// extend/ID: the player holds the lock with a short TTL and extends it by hand. Others try to acquire it.
)

// exchangeTimeout bounds an exchange, so that a silent connection does not stall a player for a whole episode.
const exchangeTimeout = time.Second

// player is one client of the locks, with the goroutines that use it.
type player struct {
	plan
	client   *locker.Client
	shut     func() // closes what the client uses
	locker   locker.Locker
	history  *history.History
	resource interface{ visit(access) []int }
	meter    *stallMeter

	wg       sync.WaitGroup
	finished chan struct{}
	ctx      context.Context // ends a moment after finished is closed
	cancel   context.CancelFunc
	wrong    atomic.Int64 // number of times that Err returned nil after Until
}

// open returns a client, and a function that closes what it uses.
func (p plan) open(ctx context.Context) (c *locker.Client, shut func(), err error) {
	shut = func() {}
	if p.Cluster || p.Sentinel {
		build := clusterDrivers[p.Driver]
		if p.Sentinel {
			build = sentinelDrivers[p.Driver]
		}
		var d drivers.Driver
		if d, shut, err = build(p.Nodes); err != nil {
			return nil, nil, err
		}
		return single.New(d, single.Timeout(exchangeTimeout)), shut, nil
	}
	var ds []drivers.Driver
	names := drivers.Names()
	for i, addr := range p.Nodes {
		name := p.Driver
		if name == "mixed" {
			name = names[(p.ID+i)%len(names)]
		}
		cfg := drivers.Config{Network: "tcp", Addr: addr, Timeout: exchangeTimeout}
		if p.Password {
			cfg.Username, cfg.Password = "default", "secret"
		}
		d, err := drivers.Open(ctx, name, cfg)
		if err != nil {
			return nil, nil, err
		}
		ds = append(ds, d)
	}
	if len(ds) == 1 {
		return single.New(ds[0], single.Timeout(exchangeTimeout)), shut, nil
	}
	return redlock.New(ds, redlock.Names(p.Nodes...), redlock.Timeout(exchangeTimeout),
		redlock.Budget(exchangeTimeout/2),
		redlock.Logger(slog.New(slog.DiscardHandler))), shut, nil
}

// start starts the goroutines of the player. Its history must have begun.
func (p *player) start(h *history.History, resource interface{ visit(access) []int }) error {
	var err error
	if p.client, p.shut, err = p.open(context.Background()); err != nil {
		return err
	}
	p.history, p.resource = h, resource
	p.locker = h.Client(p.ID, p.client)
	p.finished = make(chan struct{})
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.meter = newStallMeter()
	next := (p.ID + 1) % p.Players
	for i := range loads {
		p.wg.Go(func() { p.contend(fmt.Sprint("load/", i)) })
	}
	p.wg.Go(func() { p.contend(fmt.Sprint("extend/", next)) })
	p.wg.Go(func() { p.hold(fmt.Sprint("held/", p.ID)) })
	p.wg.Go(func() { p.wait(fmt.Sprint("held/", next)) })
	p.wg.Go(func() { p.extend(fmt.Sprint("extend/", p.ID)) })
	return nil
}

// finish returns when all goroutines have ended. The client stays open, so that it can clean up.
func (p *player) finish() {
	close(p.finished)
	t := time.AfterFunc(exchangeTimeout/2, p.cancel) // this ends the waiting; a holder may still use its lock
	p.wg.Wait()
	t.Stop()
	p.cancel()
}

// settle closes the client and returns the account of the player.
func (p *player) settle() (a account) {
	if err := p.client.Close(); err != nil {
		a.Err = err.Error()
	}
	p.shut()
	a.Wrong, a.Stall = p.wrong.Load(), p.meter.stop()
	return a
}

// pause waits for a random time between from and to, and reports whether the player goes on. It sleeps in real time,
// because the servers run in real time.
func (p *player) pause(from, to time.Duration) bool {
	t := time.NewTimer(from + rand.N(to-from+1))
	defer t.Stop()
	select {
	case <-p.finished:
		return false
	case <-t.C:
		return true
	}
}

// bounded returns a context that ends after a time between from and to, or with the player.
func (p *player) bounded(from, to time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(p.ctx, from+rand.N(to-from+1))
}

// work visits the resource like a correct holder, which gives its token with the first read.
func (p *player) work(l locker.Lease, meanwhile func()) {
	a := access{Client: p.ID, Key: l.Key(), Fence: l.Fence()}
	a.Values = p.resource.visit(a)
	meanwhile()
	// Err must notice that the time is over, even if the process was stopped.
	now := time.Now()
	if err, until := l.Err(), l.Until(); err == nil && now.After(until) {
		p.wrong.Add(1)
	}
	p.resource.visit(a) // even if the lock is lost; the register has to refuse this write
}

func (p *player) unlock(l locker.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), rand.N(600*time.Millisecond))
	defer cancel()
	if rand.IntN(8) == 0 {
		cancel()
	}
	if err := l.Unlock(ctx); err != nil && rand.IntN(4) == 0 {
		_ = l.Unlock(ctx)
	}
}

func (p *player) contend(key string) {
	for p.pause(10*time.Millisecond, 60*time.Millisecond) {
		ctx, cancel := p.bounded(20*time.Millisecond, 700*time.Millisecond)
		lock := p.locker.Lock
		if rand.IntN(2) == 0 {
			lock = p.locker.TryLock
		}
		l, err := lock(ctx, key, locker.TTL(p.Long))
		cancel()
		if err == nil {
			p.work(l, func() { p.pause(0, 15*time.Millisecond) })
			p.unlock(l)
		}
	}
}

func (p *player) hold(key string) {
	for p.pause(0, 10*time.Millisecond) {
		ctx, cancel := p.bounded(2*time.Second, 4*time.Second)
		l, err := p.locker.Lock(ctx, key, locker.TTL(p.Short))
		cancel()
		if err != nil {
			continue
		}
		p.work(l, func() {
			t := time.NewTimer(200*time.Millisecond + rand.N(2*time.Second))
			defer t.Stop()
			select {
			case <-l.Done():
				p.pause(0, p.Short/4) // this holder is slow to notice
			case <-t.C:
			case <-p.finished:
			}
		})
		p.unlock(l)
	}
}

func (p *player) wait(key string) {
	for p.pause(10*time.Millisecond, 80*time.Millisecond) {
		ctx, cancel := p.bounded(300*time.Millisecond, 4*time.Second)
		l, err := p.locker.Lock(ctx, key, locker.TTL(p.Short))
		cancel()
		if err == nil {
			p.work(l, func() { p.pause(0, 20*time.Millisecond) })
			p.unlock(l)
		}
	}
}

func (p *player) extend(key string) {
	for p.pause(0, 10*time.Millisecond) {
		ctx, cancel := p.bounded(time.Second, 2*time.Second)
		l, err := p.locker.Lock(ctx, key, locker.TTL(p.Short), locker.NoRenewal())
		cancel()
		if err != nil {
			continue
		}
		p.work(l, func() {
			for range 2 + rand.IntN(8) {
				if !p.pause(p.Short/10, p.Short/4) {
					return
				}
				ctx, cancel := p.bounded(p.Short/10, p.Short/2)
				_ = l.Extend(ctx)
				cancel()
				if l.Err() != nil {
					return
				}
			}
			if rand.IntN(3) == 0 { // this lease ends by itself, and Done has to be closed
				select {
				case <-l.Done():
				case <-p.finished:
				}
			}
		})
		p.unlock(l)
	}
}

// stallMeter measures how late timers are in this process. Done and calls may be late by the same time.
type stallMeter struct {
	done chan struct{}
	sum  chan time.Duration // sum of the delays beyond the usual ones of a busy machine
}

func newStallMeter() *stallMeter {
	m := &stallMeter{done: make(chan struct{}), sum: make(chan time.Duration, 1)}
	go func() {
		const every, usual = 5 * time.Millisecond, 15 * time.Millisecond
		sum, last := time.Duration(0), time.Now()
		for {
			select {
			case <-time.After(every):
				now := time.Now()
				if late := now.Sub(last) - every; late > usual {
					sum += late
				}
				last = now
			case <-m.done:
				m.sum <- sum
				return
			}
		}
	}()
	return m
}

// stop ends the measurement and returns the sum. It may be called once.
func (m *stallMeter) stop() time.Duration {
	close(m.done)
	return <-m.sum
}
