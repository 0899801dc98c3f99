package rueidis

import (
	"cmp"
	"context"
	"io"
	"sync"

	"github.com/redis/rueidis"

	"github.com/golocker/locker/drivers"
)

// subscriber is the driver of a client that knows one server.
type subscriber struct {
	driver
	opening chan struct{} // has room for the one Subscribe that connects
}

// Subscribe implements [drivers.Subscriber]. Dedicate heeds no context: it dials, and waits for a connection when all of the
// BlockingPoolSize are in use. SetPubSubHooks does as well, if the server speaks RESP2 only, for then it makes a connection of its
// own. Who has left cannot take that back, so one waits at a time, and gives back what nobody is there for any more.
func (d *subscriber) Subscribe(ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
	return d.gate.Subscribe(ctx, l, func(ctx context.Context) (drivers.Feed, error) {
		select {
		case d.opening <- struct{}{}:
			defer func() { <-d.opening }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		client, release := d.client.Dedicate()
		if err := ctx.Err(); err != nil {
			release()
			return nil, err
		}
		f := &feed{client: client, l: l, refused: make(chan error, 1), closed: make(chan struct{})}
		err := failure(client.Do(ctx, client.B().Arbitrary("PING").Build()))
		if err == nil {
			f.lost = client.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: f.message, OnSubscription: f.subscription})
			select {
			case err = <-f.lost:
				err = cmp.Or(err, io.EOF)
				if refusal, ok := rueidis.IsRedisErr(err); ok {
					err = handshakeError(refusal.Error())
				}
			default:
				return f, nil
			}
		}
		f.Close()
		return nil, err
	})
}

type feed struct {
	client  rueidis.DedicatedClient
	l       drivers.Listener
	lost    <-chan error  // tells how the connection ended, when the hooks have had their last call
	refused chan error    // has room for one
	closed  chan struct{} // closed by Close
	close   sync.Once

	listening sync.Mutex // held while the listener is called
	deaf      bool

	sending sync.Mutex
	queue   []rueidis.Completed
	busy    bool // somebody sends what is in the queue
}

// message and subscription are called by the client's reader.

func (f *feed) message(m rueidis.PubSubMessage) {
	f.listening.Lock()
	defer f.listening.Unlock()
	if !f.deaf {
		f.l.Message(m.Channel, m.Message)
	}
}

func (f *feed) subscription(s rueidis.PubSubSubscription) {
	f.listening.Lock()
	defer f.listening.Unlock()
	if !f.deaf && s.Kind == "subscribe" {
		f.l.Subscribed(s.Channel)
	}
}

func (f *feed) Receive() (err error) {
	select {
	case err = <-f.lost:
	case err = <-f.refused:
	case <-f.closed:
	}
	f.listening.Lock()
	defer f.listening.Unlock()
	f.deaf = true
	return cmp.Or(err, io.EOF)
}

func (f *feed) Subscribe(channels []string) error {
	f.send(f.client.B().Subscribe().Channel(channels...).Build())
	return nil
}

func (f *feed) Unsubscribe(channels []string) error {
	f.send(f.client.B().Unsubscribe().Channel(channels...).Build())
	return nil
}

// send leaves the waiting to a goroutine, because the client's Do returns with the server's answer; in which there is
// the refusal, so somebody has to wait for it.
func (f *feed) send(command rueidis.Completed) {
	f.sending.Lock()
	defer f.sending.Unlock()
	f.queue = append(f.queue, command)
	if !f.busy {
		f.busy = true
		go f.drain()
	}
}

func (f *feed) drain() {
	for {
		f.sending.Lock()
		if len(f.queue) == 0 {
			f.busy = false
			f.sending.Unlock()
			return
		}
		command := f.queue[0]
		f.queue = f.queue[1:]
		f.sending.Unlock()
		if err := failure(f.client.Do(context.Background(), command)); err != nil {
			select {
			case f.refused <- err:
			default:
			}
			return // and stay busy: nothing is sent any more
		}
	}
}

// Close does not wait for the client, which asks the server whether it has answered everything and gives it a second.
func (f *feed) Close() {
	f.close.Do(func() {
		close(f.closed)
		go f.client.Close()
	})
}

// failure returns the error of a result, a refusal as ours.
func failure(result rueidis.RedisResult) error {
	answer, err := reply(result)
	if refusal, ok := answer.(drivers.ServerError); ok {
		return refusal
	}
	return err
}
