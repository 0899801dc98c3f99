package elections

import (
	"context"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/election"
)

// bare holds a lock until it is told to hand it on, again and again. It is what an election is compared with.
type bare struct {
	locker locker.Locker
	who    int
	ask    asker
	resign chan struct{}
}

func (b *bare) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		lease, err := b.locker.Lock(ctx, "hand-over", locker.TTL(ttl))
		if err == nil {
			b.hold(ctx, lease)
		}
		select {
		case <-time.After(100 * time.Millisecond): // as an election does
		case <-ctx.Done():
		}
	}
	return nil
}

// hold is one term.
func (b *bare) hold(ctx context.Context, lease locker.Lease) {
	select {
	case <-b.resign: // was for an earlier one
	default:
	}
	held, cancel := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		select {
		case <-b.resign:
			cancel()
		case <-lease.Done():
			cancel()
		case <-held.Done():
		}
	}()
	_ = work(held, b.who, election.Term{Number: lease.Fence(), Lease: lease}, visitingBare, b.ask)
	cancel()
	<-told
	_ = lease.Unlock(ctx)
}

func (b *bare) Resign(context.Context) error {
	select {
	case b.resign <- struct{}{}:
	default:
	}
	return nil
}
