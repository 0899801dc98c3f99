package goredisdriver

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/golocker/locker/drivers"
)

// subscriber is the driver of a *redis.Client, which uses one server.
type subscriber struct{ driver }

// Subscribe implements [drivers.Subscriber].
func (d *subscriber) Subscribe(ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
	return d.lifecycle.Subscribe(ctx, l, func(ctx context.Context) (drivers.Feed, error) {
		f := newFeed(*d.client.(*redis.Client).Options(), false, l)
		if err := f.open(ctx, ""); err != nil {
			f.Close()
			return nil, refusal(err)
		}
		return f, nil
	})
}

// feed is one subscription, with a client of its own that has the same options. A PubSub of the driver's client would
// reconnect by itself when its connection fails. It could not be closed while it connects or writes, and it ignores the
// context in the handshake. feed solves this with access to the network connection, which only a Dialer has.
type feed struct {
	client  *redis.Client
	pubsub  *redis.PubSub
	options redis.Options
	sharded bool // the channels are sharded ones
	l       drivers.Listener
	first   string // a channel that was confirmed before Receive

	mu     sync.Mutex
	dialed bool
	closed bool
	conn   net.Conn
	// leaving counts the unsubscriptions that were sent and not yet confirmed, by channel.
	leaving map[string]int
}

func newFeed(options redis.Options, sharded bool, l drivers.Listener) *feed {
	f := &feed{options: options, sharded: sharded, l: l, leaving: make(map[string]int)}
	dial := options.Dialer
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return f.dial(ctx, dial, network, addr)
	}
	// These options already have defaults filled in, and NewClient fills them in once more. In the result, 0 means
	// none. For NewClient, -1 means none.
	options.MaxRetries = -1
	if options.ReadTimeout <= 0 {
		options.ReadTimeout = -1
	}
	if options.WriteTimeout <= 0 {
		options.WriteTimeout = -1
	}
	options.PoolSize, options.PipelinePoolSize = 1, -1
	options.MinIdleConns, options.MaxIdleConns, options.MaxActiveConns = 0, 0, 0
	// RESP3 is not needed, and would make the client look for other push messages before each read. Client-side caching
	// without RESP3 would be reported in the process's log.
	options.Protocol, options.ClientSideCache, options.ClientSideCacheConfig = 2, nil, nil
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	f.client = redis.NewClient(&options)
	f.pubsub = f.client.Subscribe(context.Background())
	return f
}

// dial opens the connection of the feed. It fails when it is called again.
func (f *feed) dial(
	ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), network, addr string,
) (net.Conn, error) {
	f.mu.Lock()
	again := f.dialed
	f.dialed = true
	f.mu.Unlock()
	if again {
		return nil, net.ErrClosed
	}
	conn, err := dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	f.conn = conn
	return conn, nil
}

// open connects and waits for an answer: to a PING, or to the subscription to a sharded channel.
func (f *feed) open(ctx context.Context, channel string) error {
	stop := context.AfterFunc(ctx, f.Close)
	var err error
	if f.sharded {
		err = f.pubsub.SSubscribe(ctx, channel)
	} else {
		err = f.pubsub.Ping(ctx)
	}
	if err == nil {
		_, err = f.pubsub.ReceiveTimeout(ctx, max(0, f.options.ReadTimeout))
	}
	if !stop() {
		err = ctx.Err()
	}
	f.first = channel
	return err
}

func (f *feed) Receive() error {
	if f.first != "" {
		f.l.Subscribed(f.first)
	}
	for {
		received, err := f.pubsub.Receive(context.Background())
		if err != nil {
			return refusal(err)
		}
		switch received := received.(type) {
		case *redis.Message:
			f.l.Message(received.Channel, received.Payload)
		case *redis.Subscription:
			switch received.Kind {
			case "subscribe", "ssubscribe":
				f.l.Subscribed(received.Channel)
			case "sunsubscribe":
				if !f.left(received.Channel) {
					return errMoved
				}
			}
		}
	}
}

// errMoved is why a subscription to sharded channels ends when the server unsubscribes it.
var errMoved = errors.New("the slot has moved to another server")

// left reports whether the unsubscription of channel was asked for.
func (f *feed) left(channel string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.leaving[channel] > 0
	if f.leaving[channel]--; f.leaving[channel] <= 0 {
		delete(f.leaving, channel)
	}
	return asked
}

func (f *feed) Subscribe(channels []string) error {
	if f.sharded {
		return f.pubsub.SSubscribe(context.Background(), channels...)
	}
	return f.pubsub.Subscribe(context.Background(), channels...)
}

func (f *feed) Unsubscribe(channels []string) error {
	if !f.sharded {
		return f.pubsub.Unsubscribe(context.Background(), channels...)
	}
	f.mu.Lock()
	for _, channel := range channels {
		f.leaving[channel]++
	}
	f.mu.Unlock()
	return f.pubsub.SUnsubscribe(context.Background(), channels...)
}

func (f *feed) Close() {
	f.mu.Lock()
	f.closed = true
	conn := f.conn
	f.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // first, because the client's Close waits for calls that are blocked on the connection
	}
	_ = f.client.Close()
}

// refusal converts an error reply of the client to a ServerError.
func refusal(err error) error {
	var refusal redis.Error
	if errors.As(err, &refusal) {
		return drivers.ServerError(refusal.Error())
	}
	return err
}
