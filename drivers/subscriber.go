package drivers

import "context"

// Subscriber is an optional interface that may be implemented by a [Driver] whose client can receive published messages.
// If not, waiters poll, and everything else works alike.
//
// A driver that is [Spread] must not implement Subscriber. Its channels are those of SUBSCRIBE and PUBLISH, which a Redis
// Cluster broadcasts to all of its servers, while a script learns only how many subscribers its own server has. Sharded
// channels (SSUBSCRIBE and SPUBLISH, Redis 7) do not have that flaw. They will be an optional interface of their own,
// because a subscription to them belongs to one server, which the slot of the channel decides: see
// docs/adr/0029-sharded-channels-are-an-interface-of-their-own.md.
//
// The rules are checked by conformance.RunDriver. [Gate.Subscribe] keeps those that have nothing to do with the client.
type Subscriber interface {
	// Subscribe opens a connection of its own, which takes nothing from those that commands use, and returns when the
	// server has answered on it or it has failed; ctx bounds that, cancellation included, and nothing else. l learns what
	// comes over the connection; if Subscribe fails, it hears nothing.
	//
	// The subscription lasts until it is closed or the connection fails, and is not repaired: whoever has it opens another
	// one, because messages were lost meanwhile. Silence does not end it: whoever wants to know sends himself a message.
	//
	// An error is a [ServerError] if the server refused the connection, and matches [ErrClosed] after the driver's Close,
	// which ends all subscriptions as their own Close does.
	Subscribe(ctx context.Context, l Listener) (Subscription, error)
}

// Subscription is one connection that receives published messages. Its methods may be called concurrently, but neither
// they nor the driver's Close from within a [Listener].
type Subscription interface {
	// Subscribe asks the server for the messages of channels and does not wait for the answer: the Listener's Subscribed
	// reports each that is confirmed. An error, or a refusal by the server, ends the subscription; after its end there is
	// always an error.
	Subscribe(channels ...string) error
	// Unsubscribe ends that. Messages that are under way may still come.
	Unsubscribe(channels ...string) error
	// Close ends the subscription, whatever the server does, and returns when the Listener has had its last call. Closing
	// twice is harmless.
	Close() error
}

// Listener gets what comes over a [Subscription], one call at a time and in the order of the server. None of its
// functions is nil; none blocks, for it may be the client's reader that calls.
type Listener struct {
	// Subscribed: the server has confirmed channel: what is published from now on comes.
	Subscribed func(channel string)
	// Message was published on channel.
	Message func(channel, payload string)
	// Lost is the last call. It comes exactly once per Subscription, perhaps before Subscribe has returned it. err is never
	// nil: it matches [ErrClosed] if the subscription or the driver was closed, is a [ServerError] if the server refused
	// what was asked, and otherwise says how the connection failed.
	Lost func(err error)
}
