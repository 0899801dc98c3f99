package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/single"
)

// lent is a driver whose Close has no effect.
type lent struct{ drivers.Driver }

func (lent) Close() error { return nil }

type lentSubscriber struct {
	lent
	drivers.Subscriber
}

type lentCluster struct{ lent }

// Cluster implements drivers.Cluster.
func (lentCluster) Cluster() {}

type lentShards struct {
	lentCluster
	drivers.ShardSubscriber
}

func lend(d drivers.Driver) drivers.Driver {
	if s, ok := d.(drivers.ShardSubscriber); ok {
		return lentShards{lentCluster{lent{d}}, s}
	}
	if _, ok := d.(drivers.Cluster); ok {
		return lentCluster{lent{d}}
	}
	if s, ok := d.(drivers.Subscriber); ok {
		return lentSubscriber{lent{d}, s}
	}
	return lent{d}
}

const probeTTL = 5 * time.Second

// listening lists how long the waiter may take to subscribe: longer with each try, for busy servers and machines. There
// are as many tries if an answer takes longer than clients wait for it.
var listening = []time.Duration{250 * time.Millisecond, time.Second, 3 * time.Second}

// locks takes, extends, waits for, hands over and releases a lock on the node, as clients do.
func (p *checkup) locks(ctx context.Context) {
	key := p.probe("lock")
	open := func() *locker.Client {
		return single.New(lend(p.Driver), single.Prefix(p.e.Prefix), single.Name(p.Name), single.Timeout(p.e.Timeout))
	}
	holder, waiter := open(), open()
	defer func() {
		_ = holder.Close()
		_ = waiter.Close()
		del := append(drivers.Command{"DEL"}, node.NamesOf(p.e.Prefix, key).Keys...)
		_, _ = p.ask(context.WithoutCancel(ctx), del)
	}()
	told, err := handOver(ctx, holder, waiter, key, false)
	if err != nil {
		p.fail("scripts", "see the server's log; scripts (EVAL) must be allowed, and a proxy must not change them",
			"%v", err)
		return
	}
	p.ok("scripts", "a lock was taken, extended, waited for, handed over and released")
	if told {
		p.ok("messages", "waiters are notified")
		return
	}
	why := p.whyDeaf(ctx)
	if p.noPublish != "" {
		why = p.noPublish
	}
	fix := "ACL SETUSER " + p.user() + " +publish +subscribe +unsubscribe +ping &" + p.e.Prefix + "*, if the user lacks " +
		"these; a proxy in between must support SUBSCRIBE"
	if p.sharded() {
		fix = "ACL SETUSER " + p.user() + " +spublish +ssubscribe +sunsubscribe +ping &{*}}" + p.e.Prefix + "*, if the " +
			"user lacks these; servers before Redis 7 have no sharded channels"
	}
	var e drivers.ServerError
	refused := errors.As(why, &e)
	if refused && e.Code() != "NOPERM" {
		fix = Refusal(e, p.Username).Fix
	} else if c, found := Probe(ctx, p.Dial, p.Username); !refused && found { // the client may have hidden the cause
		fix, why = c.Fix, fmt.Errorf("%s; %w", c.Text, why)
	}
	p.warn("messages", fix, "waiters are not notified, and have to poll every 50 to 100 ms (%v)", why)
}

// isSilence reports whether err says that the server has not answered in time. A refusal is an answer.
func isSilence(err error) bool {
	return errors.Is(err, locker.ErrUnavailable) && !errors.As(err, new(drivers.ServerError))
}

// handOver hands a lock over to a waiter, and reports whether the waiter was notified. It tries several times, but once
// is enough if the waiter polls.
func handOver(ctx context.Context, holder, waiter locker.Locker, key string, polls bool) (told bool, err error) {
	for i := 0; i < len(listening) && !told; i++ {
		told, err = handOverOnce(ctx, holder, waiter, key, listening[i])
		if err != nil && !isSilence(err) || err == nil && polls {
			break
		}
	}
	return told, err
}

func handOverOnce(ctx context.Context, holder, waiter locker.Locker, key string, listen time.Duration) (told bool,
	err error) {
	lease, err := holder.Lock(ctx, key, locker.TTL(probeTTL))
	if err != nil {
		return false, err
	}
	if err := lease.Extend(ctx); err != nil {
		return false, errors.Join(err, lease.Unlock(ctx))
	}
	result, waits := make(chan error, 1), make(chan struct{}, 1)
	var how lockertrace.WakeReason
	go func() {
		ctx := lockertrace.With(ctx, &lockertrace.Trace{
			Waiting: func(lockertrace.Waiting) { waits <- struct{}{} },
			Woken:   func(w lockertrace.Wake) { how = w.Reason },
		})
		lease, err := waiter.Lock(ctx, key, locker.TTL(probeTTL))
		if err == nil {
			err = lease.Unlock(ctx)
		}
		result <- err
	}()
	select {
	case <-waits:
		sleep(ctx, listen)
	case err := <-result:
		return false, errors.Join(err, lease.Unlock(ctx))
	case <-ctx.Done():
	}
	if err := errors.Join(lease.Unlock(ctx), <-result); err != nil {
		return false, fmt.Errorf("a lock could not be handed over to a waiter: %w", err)
	}
	return how != lockertrace.WakePoll, nil
}

// whyDeaf returns the reason why no message arrived.
func (p *checkup) whyDeaf(ctx context.Context) error {
	lost, subscribed := make(chan error, 1), make(chan struct{}, 1)
	sub, err := p.subscribe(ctx, drivers.Listener{
		Subscribed: func(string) { subscribed <- struct{}{} },
		Message:    func(string, string) {},
		Lost:       func(err error) { lost <- err },
	})
	if err != nil {
		return err
	}
	defer func() { _ = sub.Close() }()
	select {
	case err := <-lost:
		return err
	case <-subscribed:
		return errors.New("the user can subscribe, but messages are lost or late")
	case <-ctx.Done():
		return errors.New("no answer to SUBSCRIBE")
	}
}

// subscribe subscribes to a channel of a lock.
func (p *checkup) subscribe(ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
	_, channel := p.publishing(node.NamesOf(p.e.Prefix, p.probe("lock")))
	switch s := p.Driver.(type) {
	case drivers.ShardSubscriber:
		return s.SubscribeShard(ctx, channel, l)
	case drivers.Subscriber:
		sub, err := s.Subscribe(ctx, l)
		if err != nil {
			return nil, err
		}
		if err := sub.Subscribe(channel); err != nil {
			_ = sub.Close()
			return nil, err
		}
		return sub, nil
	}
	return nil, errors.New("this driver cannot receive messages")
}
