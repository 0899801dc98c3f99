package conformance

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
)

// buggySubscriber breaks the subscriptions of a sound driver.
type buggySubscriber struct {
	*buggy
	sound drivers.Subscriber
}

func (b *buggySubscriber) Subscribe(ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
	return b.bug.subscribe(b, ctx, l)
}

// buggySubscription replaces the methods for which a function is set.
type buggySubscription struct {
	drivers.Subscription
	subscribe, unsubscribe func(channels ...string) error
	close                  func() error
}

func (s buggySubscription) Subscribe(channels ...string) error {
	if s.subscribe != nil {
		return s.subscribe(channels...)
	}
	return s.Subscription.Subscribe(channels...)
}

func (s buggySubscription) Unsubscribe(channels ...string) error {
	if s.unsubscribe != nil {
		return s.unsubscribe(channels...)
	}
	return s.Subscription.Unsubscribe(channels...)
}

func (s buggySubscription) Close() error {
	if s.close != nil {
		return s.close()
	}
	return s.Subscription.Close()
}

// listening makes a bug from a function that changes the listener.
func listening(spoil func(l *drivers.Listener)) func(*buggySubscriber, context.Context,
	drivers.Listener) (drivers.Subscription, error) {
	return func(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
		spoil(&l)
		return b.sound.Subscribe(ctx, l)
	}
}

// subscribing makes a bug from a function that changes the subscription.
func subscribing(spoil func(s *buggySubscription)) func(*buggySubscriber, context.Context,
	drivers.Listener) (drivers.Subscription, error) {
	return func(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
		sub, err := b.sound.Subscribe(ctx, l)
		if err != nil {
			return nil, err
		}
		s := &buggySubscription{Subscription: sub}
		spoil(s)
		return s, nil
	}
}

// repaired is a subscription that reconnects, like those of most clients.
type repaired struct {
	drivers.Subscription
	mu       sync.Mutex
	channels []string
}

func (r *repaired) current() drivers.Subscription {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Subscription
}

func (r *repaired) Subscribe(channels ...string) error {
	r.mu.Lock()
	r.channels = append(r.channels, channels...)
	r.mu.Unlock()
	return r.current().Subscribe(channels...)
}

func (r *repaired) Close() error {
	_ = r.current().Close()
	return r.current().Close() // the first connection may just have been replaced
}

// repair makes the second connection of a subscription.
func repair(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
	r := &repaired{}
	first := l
	first.Lost = func(err error) {
		if errors.Is(err, drivers.ErrClosed) {
			l.Lost(err)
			return
		}
		second, failure := b.sound.Subscribe(context.WithoutCancel(ctx), l)
		if failure != nil {
			l.Lost(err)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.Subscription = second
		_ = second.Subscribe(r.channels...)
	}
	sub, err := b.sound.Subscribe(ctx, first)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Subscription = sub
	return r, nil
}

// madeUp confirms channels by itself, whether the server has or not, once the subscription has many channels. It does
// not go by time: on a busy machine a true confirmation may be late. Messages that follow a made-up one would then be
// lost, and other properties would notice.
func madeUp(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
	const enough = 50
	var mu sync.Mutex
	known, lost := map[string]bool{}, false
	sound := drivers.Listener{
		Subscribed: func(channel string) {
			mu.Lock()
			defer mu.Unlock()
			known[channel] = true
			l.Subscribed(channel)
		},
		Message: func(channel, payload string) {
			mu.Lock()
			defer mu.Unlock()
			l.Message(channel, payload)
		},
		Lost: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			lost = true
			l.Lost(err)
		},
	}
	sub, err := b.sound.Subscribe(ctx, sound)
	if err != nil {
		return nil, err
	}
	return buggySubscription{Subscription: sub, subscribe: func(channels ...string) error {
		err := sub.Subscribe(channels...)
		mu.Lock()
		defer mu.Unlock()
		for _, channel := range channels {
			if len(known) >= enough && !known[channel] && !lost {
				l.Subscribed(channel)
			}
		}
		return err
	}}, nil
}

// polite waits for an answer of the server before it closes.
func polite(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
	answered := make(chan struct{})
	subscribed := l.Subscribed
	l.Subscribed = func(channel string) {
		if channel == "bye" {
			close(answered)
			return
		}
		subscribed(channel)
	}
	sub, err := b.sound.Subscribe(ctx, l)
	if err != nil {
		return nil, err
	}
	var once sync.Once
	return buggySubscription{Subscription: sub, close: func() error {
		once.Do(func() {
			if sub.Subscribe("bye") == nil {
				select {
				case <-answered:
				case <-time.After(slack + slack/2):
				}
			}
		})
		return sub.Close()
	}}, nil
}
