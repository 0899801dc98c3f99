package rueidisdriver

import (
	"context"
	"sync"

	"github.com/redis/rueidis"

	"github.com/golocker/locker/drivers"
)

// members is the driver of a cluster whose client is created when it is first needed.
type members struct {
	connect   func() (*cluster, error)
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	turn      chan struct{} // a semaphore: one call of connect at a time
	lifecycle drivers.Lifecycle

	mu     sync.Mutex
	driver *cluster // nil until connect has succeeded
}

// Cluster implements [drivers.Cluster].
func (*members) Cluster() {}

// Direct implements [drivers.Direct].
func (m *members) Direct() bool {
	d := m.opened()
	return d != nil && d.Direct()
}

func (m *members) opened() *cluster {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.driver
}

func (m *members) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if err := m.lifecycle.Enter(ctx); err != nil {
		return nil, err
	}
	if d := m.opened(); d != nil {
		return d.Do(ctx, cmds...)
	}
	if end, ok := ctx.Deadline(); ok && ctx.Done() == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	d, err := m.wait(ctx)
	if refusal, ok := rueidis.IsRedisErr(err); ok {
		return drivers.Refused(handshakeError(refusal.Error()), len(cmds)), nil
	} else if err != nil {
		return nil, drivers.NotSent(err)
	}
	return d.Do(ctx, cmds...)
}

// SubscribeShard implements [drivers.ShardSubscriber].
func (m *members) SubscribeShard(
	ctx context.Context, channel string, l drivers.Listener,
) (drivers.Subscription, error) {
	if err := m.lifecycle.Enter(ctx); err != nil {
		return nil, err
	}
	d, err := m.wait(ctx)
	if refusal, ok := rueidis.IsRedisErr(err); ok {
		return nil, handshakeError(refusal.Error())
	} else if err != nil {
		return nil, err
	}
	return d.SubscribeShard(ctx, channel, l)
}

// wait returns the driver when there is one. Callers take turns, and each tries to connect once.
func (m *members) wait(ctx context.Context) (*cluster, error) {
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-m.ctx.Done():
		return nil, drivers.ErrClosed
	}
	done := make(chan error, 1) // buffered, so that the goroutine of a caller that has left can end
	go func() {
		defer func() { <-m.turn }()
		if m.opened() == nil {
			done <- m.open() // a caller that finds the driver open receives nil from the closed channel
		}
		close(done)
	}()
	select {
	case err := <-done:
		return m.opened(), err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-m.ctx.Done():
		return nil, drivers.ErrClosed
	}
}

func (m *members) open() error {
	d, err := m.connect()
	if err != nil {
		return err
	}
	m.mu.Lock()
	closed := m.ctx.Err() != nil
	if !closed {
		m.driver = d
	}
	m.mu.Unlock()
	if closed {
		_ = d.Close()
		return drivers.ErrClosed
	}
	return nil
}

func (m *members) Close() error {
	m.lifecycle.Shut()
	m.mu.Lock()
	m.cancel()
	d := m.driver
	m.mu.Unlock()
	if d != nil {
		return d.Close()
	}
	return nil
}
