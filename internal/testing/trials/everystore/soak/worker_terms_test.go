package soak

import (
	"context"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/lockertrace"
)

// The keys of an election, and of the lock that it is compared with.
const (
	office = "office"
	turn   = "turn"
)

// The time between two looks of a leader, and of one who has the lock, of which is only measured how soon the next one
// comes.
const leading, holding = time.Millisecond, 10 * time.Millisecond

// campaigns is a candidate.
func (w *worker) campaigns(ctx context.Context) {
	began := now()
	e := election.New(w.Locker, office, election.Config{
		Identity: fmt.Sprint("candidate-", w.Who),
		Options:  []locker.Option{locker.TTL(ttl)},
		OnError:  func(error) {},
		OnElected: func(ctx context.Context, term election.Term) error {
			w.leads(ctx, office, term, began, leading)
			began = now()
			return nil
		},
	})
	go func() {
		for {
			select {
			case <-w.resign:
				go func() { _ = e.Resign(ctx) }()
			case <-ctx.Done():
				return
			}
		}
	}()
	if err := e.Run(w.waiting(ctx)); err != nil && ctx.Err() == nil {
		panic(err) // only a mistake in this test
	}
}

// takesTurns holds a lock until it is told to hand it on.
func (w *worker) takesTurns(ctx context.Context) {
	began := now()
	lease, err := w.Lock(w.waiting(ctx), turn, locker.TTL(ttl))
	if err == nil {
		select {
		case <-w.resign: // was for an earlier one
		default:
		}
		held, cancel := context.WithCancel(ctx)
		go func() {
			defer cancel()
			select {
			case <-w.resign:
			case <-lease.Done():
			case <-held.Done():
			}
		}()
		w.leads(held, turn, election.Term{Number: lease.Fence(), Lease: lease}, began, holding)
		cancel()
		_ = lease.Unlock(ctx)
	}
	select {
	case <-time.After(100 * time.Millisecond): // as an election does
	case <-ctx.Done():
	}
}

// waiting makes the worker say when a call of Lock with the context begins to wait.
func (w *worker) waiting(ctx context.Context) context.Context {
	return lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { w.say(word{What: waits}) }})
}

// leads relies on the lease of a term again and again until ctx ends, and a last time then.
func (w *worker) leads(ctx context.Context, key string, term election.Term, began int64, between time.Duration) {
	lease, name := term.Lease, w.name()
	w.say(word{
		What: has, Kind: lock, Key: key, Lease: name, Owner: lease.Token(), Fence: term.Number, Began: began, At: now(),
	})
	pause := time.NewTicker(between)
	defer pause.Stop()
	for isOver := false; !isOver; {
		at := now() // before the look, because the process may be stopped between the two
		isOver = ctx.Err() != nil
		if lease.Err() != nil || !time.Now().Before(lease.Until()) {
			if !endsSoon(ctx) {
				w.say(word{What: goesOn, Lease: name})
			}
			return
		}
		w.say(word{What: relies, Key: key, Lease: name, At: at})
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
}

// endsSoon waits until ctx ends, for two seconds in which this process runs: the ticks that it sleeps through are lost.
func endsSoon(ctx context.Context) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range 100 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return true
		}
	}
	return ctx.Err() != nil
}
