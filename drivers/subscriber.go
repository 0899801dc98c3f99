package drivers

import "context"

// Subscriber is what a [Driver] also is if its client can receive published messages. Waiters are woken by them; over
// a driver that is no Subscriber they poll, and everything else works alike. A driver of a Redis Cluster must not be one:
// there a script learns only how many subscribers its own node has.
type Subscriber interface {
	// Subscribe opens a connection of its own and returns when it is ready or has failed; ctx bounds that and nothing
	// else. l learns what comes over the connection.
	//
	// The subscription lasts until it is closed or the connection fails, and is not repaired: whoever has it opens another
	// one, because messages were lost meanwhile. An error may be a [ServerError], and matches [ErrClosed] after the
	// driver's Close, which ends all subscriptions.
	Subscribe(ctx context.Context, l Listener) (Subscription, error)
}

// Subscription is one connection that receives published messages. Its methods may be called concurrently, but not
// from within a [Listener].
type Subscription interface {
	// Subscribe asks the server for the messages of channels; the Listener's Subscribed reports each that it has confirmed.
	// An error, or a refusal by the server, ends the subscription.
	Subscribe(channels ...string) error
	// Unsubscribe ends that. Messages that are under way may still come.
	Unsubscribe(channels ...string) error
	// Close ends the subscription and returns when the Listener has had its last call, or cannot have any. Closing twice is
	// harmless.
	Close() error
}

// Listener gets what comes over a [Subscription], one call at a time and in the order of the server. None of its
// functions is nil; none blocks.
type Listener struct {
	// Subscribed: the server has confirmed channel: what is published from now on comes.
	Subscribed func(channel string)
	// Message was published on channel.
	Message func(channel, payload string)
	// Lost is the last call: the connection has failed, or was closed. It comes exactly once per Subscription.
	Lost func(err error)
}
