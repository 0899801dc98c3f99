package rueidisdriver

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/golocker/locker/drivers"
)

const (
	// maxOpening is how many calls of SubscribeShard may connect at a time. One would wait for another server's time-out.
	maxOpening = 8
	// maxRedirections is how many redirections SubscribeShard follows. There is more than one only if the slot moves
	// again meanwhile.
	maxRedirections = 3
)

// SubscribeShard implements [drivers.ShardSubscriber].
func (d *cluster) SubscribeShard(
	ctx context.Context, channel string, l drivers.Listener,
) (drivers.Subscription, error) {
	return d.lifecycle.Subscribe(ctx, l, func(ctx context.Context) (drivers.Feed, error) {
		select {
		case d.opening <- struct{}{}:
			defer func() { <-d.opening }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		server := d.client // it dedicates a connection to the master of the first command's slot
		for n := 0; ; n++ {
			client, _ := server.Dedicate()
			f := newFeed(client, channel, l)
			f.lost = client.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: f.message, OnSubscription: f.subscription})
			result := client.Do(ctx, f.subscribeTo(channel))
			err := failure(result)
			if err == nil {
				return f, nil
			}
			f.Close()
			refusal, _ := rueidis.IsRedisErr(result.Error())
			if refusal == nil || n == maxRedirections || ctx.Err() != nil {
				return nil, err
			}
			addr, moved := refusal.IsMoved()
			if !moved {
				return nil, err
			}
			if server = d.client.Nodes()[addr]; server == nil {
				return nil, err // the client does not know that server yet, but looks at the slots now
			}
		}
	})
}
