package drivers

import "context"

// Subscriber is an optional interface that may be implemented by a [Driver] whose client can receive published
// messages. If not, waiters poll. Everything else works in the same way.
//
// A driver that implements [Cluster] must not implement Subscriber. The channels of a Subscriber are those of SUBSCRIBE
// and PUBLISH. A Redis Cluster broadcasts these to all of its servers, but a script learns only how many subscribers
// its own server has. Sharded channels (SSUBSCRIBE and SPUBLISH, Redis 7) do not have this problem; see
// [ShardSubscriber].
//
// conformance.RunDriver checks the rules below. [Lifecycle.Subscribe] implements those that do not depend on the
// client.
type Subscriber interface {
	// Subscribe opens a new connection, which does not count against the connections for commands. It returns when the
	// server has answered on that connection, or when it has failed. The end of ctx, by deadline or cancellation, ends
	// the call, but not the subscription. What arrives on the connection is passed to l. If Subscribe fails, l is not
	// called.
	//
	// The subscription ends when it is closed or when the connection fails. It is not re-established, because messages
	// were lost meanwhile; the caller must open another one. The subscription does not end because no messages arrive.
	// To check the connection, publish a message to it.
	//
	// An error is a [ServerError] if the server refused the connection. After the driver's Close, which closes all
	// subscriptions, it matches [ErrClosed].
	Subscribe(ctx context.Context, l Listener) (Subscription, error)
}

// Subscription is one connection that receives published messages. Its methods may be called concurrently. A function
// of a [Listener] must call neither them nor the driver's Close.
type Subscription interface {
	// Subscribe asks the server for the messages of channels. It does not wait for the answer: Listener.Subscribed is
	// called for each channel when the server confirms it. An error, or a refusal by the server, ends the subscription.
	// After the end of the subscription, Subscribe always returns an error.
	Subscribe(channels ...string) error

	// Unsubscribe tells the server to send no more messages of channels. Messages that are already on their way may
	// still arrive.
	Unsubscribe(channels ...string) error

	// Close ends the subscription, whatever the server does. It returns after the last call of the Listener. Closing
	// twice is harmless.
	Close() error
}

// Listener has the functions that are called for what arrives on a [Subscription]. They are called one at a time, in
// the order of the server. All of them must be set. They must not block, because the client's reader may be calling
// them.
type Listener struct {
	// Subscribed is called when the server has confirmed channel. All messages that are published from now on arrive.
	Subscribed func(channel string)

	// Message is called when payload was published on channel.
	Message func(channel, payload string)

	// Lost is called once per Subscription, as the last call, possibly before Subscribe has returned. err is never nil.
	// It matches [ErrClosed] if the subscription or the driver was closed. It is a [ServerError] if the server refused
	// a command. Otherwise it says how the connection failed.
	Lost func(err error)
}
