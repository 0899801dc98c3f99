package redlock

import (
	"context"
	"sync"

	"github.com/golocker/locker"
)

// RaiseFences implements inspect.FenceRaiser. It asks all nodes, and succeeds if a majority has raised all of its
// counters. Each later majority has one of these nodes, and a token is greater than the counters of all nodes that have
// granted it.
func (b *majority) RaiseFences(ctx context.Context, past uint64) error {
	b.inFlight.Enter()
	defer b.inFlight.Leave()
	if b.closed() {
		return locker.ErrClosed
	}
	errs := make([]error, len(b.nodes))
	var wg sync.WaitGroup
	for i, n := range b.nodes {
		wg.Go(func() { errs[i] = n.RaiseFences(ctx, past) })
	}
	wg.Wait()
	agreed := 0
	for _, err := range errs {
		if err == nil {
			agreed++
		}
	}
	if agreed > len(errs)/2 {
		return nil
	}
	return b.quorumError("raise tokens", noQuorum{}, func(i int) (Outcome, error) {
		if errs[i] == nil {
			return Agreed, nil
		}
		return faultOf(errs[i]), errs[i]
	})
}
