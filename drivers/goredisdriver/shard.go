package goredisdriver

import (
	"cmp"
	"context"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/golocker/locker/drivers"
)

// maxRedirections is how many redirections SubscribeShard follows. There is more than one only if the slot moves again
// meanwhile.
const maxRedirections = 3

// SubscribeShard implements [drivers.ShardSubscriber].
func (d *cluster) SubscribeShard(
	ctx context.Context, channel string, l drivers.Listener,
) (drivers.Subscription, error) {
	return d.lifecycle.Subscribe(ctx, l, func(ctx context.Context) (drivers.Feed, error) {
		master, err := d.driver.cluster.MasterForKey(ctx, channel)
		if err != nil {
			return nil, refusal(err)
		}
		options := *master.Options()
		for n := 0; ; n++ {
			f := newFeed(options, true, l)
			err := f.open(ctx, channel)
			if err == nil {
				return f, nil
			}
			f.Close()
			addr, moved := redis.IsMovedError(err)
			if !moved || n == maxRedirections || ctx.Err() != nil {
				return nil, refusal(err)
			}
			d.driver.cluster.ReloadState(ctx) // does not wait; the next subscription is opened at the new master
			options.Addr = redirected(options.Addr, addr)
		}
	})
}

// redirected returns the address that a server redirects to. Without a host, it is another port of that server.
func redirected(from, to string) string {
	here, _, _ := net.SplitHostPort(from)
	host, port, err := net.SplitHostPort(to)
	if err != nil {
		return to
	}
	return net.JoinHostPort(cmp.Or(host, here), port)
}
