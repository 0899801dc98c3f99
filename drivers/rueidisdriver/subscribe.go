package rueidisdriver

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/redis/rueidis"

	"github.com/golocker/locker/drivers"
)

// subscriber is the driver of a client that uses one server.
type subscriber struct {
	driver
	opening chan struct{} // a semaphore: one call of Subscribe at a time may connect
}

// Subscribe implements [drivers.Subscriber].
//
// Dedicate ignores the context while it dials, or while it waits because BlockingPoolSize connections are in use. With
// RESP2, SetPubSubHooks also opens a connection. Neither can be interrupted when the caller has left. Therefore only
// one call at a time may connect, and it closes the connection if the caller has left.
func (d *subscriber) Subscribe(ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
	return d.lifecycle.Subscribe(ctx, l, func(ctx context.Context) (drivers.Feed, error) {
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
		f := newFeed(client, "", l)
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

func newFeed(client rueidis.DedicatedClient, shard string, l drivers.Listener) *feed {
	return &feed{
		client: client, shard: shard, l: l, leaving: make(map[string]int),
		refused: make(chan error, 1), closed: make(chan struct{}),
	}
}

type feed struct {
	client  rueidis.DedicatedClient
	shard   string // a channel that has the slot of the sharded channels; empty if the channels are not sharded
	l       drivers.Listener
	lost    <-chan error  // receives the reason when the connection has ended, after the last call of the hooks
	refused chan error    // buffered: the first refusal by the server
	closed  chan struct{} // closed by Close
	close   sync.Once

	listening sync.Mutex // held while the listener is called
	receiving bool       // Receive was called
	early     []func()   // the calls of the listener before that
	deaf      bool
	leaving   map[string]int // unsubscriptions that were sent and not yet confirmed, by sharded channel

	sending sync.Mutex
	queue   []rueidis.Completed
	busy    bool // a goroutine is sending the commands in the queue
}

// message and subscription are called by the client's reader.

func (f *feed) message(m rueidis.PubSubMessage) {
	f.tell(func() { f.l.Message(m.Channel, m.Message) })
}

func (f *feed) subscription(s rueidis.PubSubSubscription) {
	switch s.Kind {
	case "subscribe", "ssubscribe":
		f.tell(func() { f.l.Subscribed(s.Channel) })
	case "sunsubscribe":
		f.listening.Lock()
		defer f.listening.Unlock()
		if f.leaving[s.Channel]--; f.leaving[s.Channel] < 0 {
			f.refuse(errMoved)
		}
		if f.leaving[s.Channel] <= 0 {
			delete(f.leaving, s.Channel)
		}
	}
}

// errMoved is why a subscription to sharded channels ends when the server unsubscribes it.
var errMoved = errors.New("the slot has moved to another server")

// tell calls a function of the listener, but not before Receive.
func (f *feed) tell(call func()) {
	f.listening.Lock()
	defer f.listening.Unlock()
	switch {
	case !f.receiving:
		f.early = append(f.early, call)
	case !f.deaf:
		call()
	}
}

func (f *feed) Receive() (err error) {
	f.listening.Lock()
	f.receiving = true
	for _, call := range f.early {
		call()
	}
	f.early = nil
	f.listening.Unlock()
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
	if f.shard != "" {
		f.send(f.subscribeTo(channels...))
	} else {
		f.send(f.client.B().Subscribe().Channel(channels...).Build())
	}
	return nil
}

func (f *feed) Unsubscribe(channels []string) error {
	if f.shard == "" {
		f.send(f.client.B().Unsubscribe().Channel(channels...).Build())
		return nil
	}
	f.listening.Lock()
	for _, channel := range channels {
		f.leaving[channel]++
	}
	f.listening.Unlock()
	f.send(f.client.B().Sunsubscribe().Channel(channels...).Build().SetSlot(f.shard))
	return nil
}

// subscribeTo returns the command that subscribes to sharded channels. The client panics if a command has another slot
// than the first one of its connection. The server refuses it.
func (f *feed) subscribeTo(channels ...string) rueidis.Completed {
	return f.client.B().Ssubscribe().Channel(channels...).Build().SetSlot(f.shard)
}

// send queues a command and does not wait for the answer. A goroutine does: the client's Do returns when the server has
// answered, and the answer may be a refusal.
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
			f.refuse(err)
			return // busy stays true, so that nothing is sent any more
		}
	}
}

// refuse ends Receive, unless something else has ended it.
func (f *feed) refuse(err error) {
	select {
	case f.refused <- err:
	default:
	}
}

// Close does not wait for the Close of the client, which sends a command to the server and waits up to a second for the
// answer.
func (f *feed) Close() {
	f.close.Do(func() {
		close(f.closed)
		go f.client.Close()
	})
}

// failure returns the error of a result. A refusal is a ServerError.
func failure(result rueidis.RedisResult) error {
	answer, err := reply(result)
	if refusal, ok := answer.(drivers.ServerError); ok {
		return refusal
	}
	return err
}
