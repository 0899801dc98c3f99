package drivers

import "context"

// ShardSubscriber is an optional interface that may be implemented by a [Driver] that is a [Cluster]. If not, waiters
// poll. Everything else works in the same way.
//
// The channels of a ShardSubscriber are those of SSUBSCRIBE and SPUBLISH, which Redis 7 and Valkey have. A channel
// belongs to the hash slot of its name, as a key does. A script that publishes on it learns how many subscribers the
// script's own server has, so a subscriber must be connected to the master that has the slot.
//
// conformance.RunDriver checks the rules below. [Lifecycle.Subscribe] implements those that do not depend on the
// client.
type ShardSubscriber interface {
	// SubscribeShard opens a new connection to the master that has the slot of channel, and subscribes to channel. It
	// returns when the server has confirmed that, or when it has failed. Subscribed of l is called for channel, too. In
	// all else, SubscribeShard and the [Subscription] keep to the rules of [Subscriber.Subscribe]:
	//
	//   - All channels of the Subscription have the slot of channel. The caller sees to that by a {hash tag}.
	//   - If the slot moves to another server, the Subscription ends, as if the connection had failed. Subscriptions to
	//     other slots live on.
	//   - If the server answers that another one has the slot, the driver goes there before SubscribeShard fails.
	//   - Any other refusal is a [ServerError]. Servers before Redis 7 refuse the command.
	SubscribeShard(ctx context.Context, channel string, l Listener) (Subscription, error)
}
