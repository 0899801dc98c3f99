package redigodriver

import (
	"context"
	"errors"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/drivers"
)

// Subscribe implements [drivers.Subscriber].
func (d *driver) Subscribe(ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
	return d.lifecycle.Subscribe(ctx, l, func(ctx context.Context) (drivers.Feed, error) {
		conn, err := d.dial(ctx)
		if err != nil {
			return nil, refusal(err)
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		if _, err = conn.Do("PING"); !stop() {
			err = ctx.Err()
		}
		if err != nil {
			_ = conn.Close()
			return nil, refusal(err)
		}
		return &feed{redis.PubSubConn{Conn: conn}, l}, nil
	})
}

// dial opens a connection as the pool does. A connection of the pool would not be available for commands, and closing
// it would wait until the server has confirmed the end of all subscriptions.
func (d *driver) dial(ctx context.Context) (redis.Conn, error) {
	switch {
	case d.pool.DialContext != nil:
		return d.pool.DialContext(ctx)
	case d.pool.Dial != nil:
		return d.pool.Dial()
	}
	return nil, errors.New("redigo: must pass Dial or DialContext to pool")
}

type feed struct {
	conn redis.PubSubConn
	l    drivers.Listener
}

func (f *feed) Receive() error {
	receive := func() any { return f.conn.ReceiveWithTimeout(0) }
	if _, ok := f.conn.Conn.(redis.ConnWithTimeout); !ok {
		receive = f.conn.Receive // for a wrapper without time-outs per call: its read time-out ends the subscription
	}
	for {
		switch received := receive().(type) {
		case redis.Message:
			f.l.Message(received.Channel, string(received.Data))
		case redis.Subscription:
			if received.Kind == "subscribe" {
				f.l.Subscribed(received.Channel)
			}
		case error:
			return refusal(received)
		}
	}
}

func (f *feed) Subscribe(channels []string) error {
	return f.conn.Subscribe(redis.Args{}.AddFlat(channels)...)
}

func (f *feed) Unsubscribe(channels []string) error {
	return f.conn.Unsubscribe(redis.Args{}.AddFlat(channels)...)
}

func (f *feed) Close() { _ = f.conn.Close() }

// refusal converts an error reply of the client to a ServerError.
func refusal(err error) error {
	var refusal redis.Error
	if errors.As(err, &refusal) {
		return drivers.ServerError(refusal)
	}
	return err
}
