package conformance

import (
	"context"
	"errors"
	"strings"
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

var subscriberBugs = []bug{
	{name: "messages are cut at zero bytes", fails: []string{"MessagesArrive"},
		subscribe: listening(func(l *drivers.Listener) {
			message := l.Message
			l.Message = func(channel, payload string) {
				payload, _, _ = strings.Cut(payload, "\x00")
				message(channel, payload)
			}
		})},
	{name: "a message overtakes another", fails: []string{"MessagesArrive"},
		subscribe: listening(func(l *drivers.Listener) {
			message := l.Message
			overtaken := ""
			l.Message = func(channel, payload string) {
				if payload == "100" {
					overtaken = channel
					return
				}
				message(channel, payload)
				if overtaken != "" {
					message(overtaken, "100")
					overtaken = ""
				}
			}
		})},
	{name: "empty messages are dropped", fails: []string{"MessagesArrive"},
		subscribe: listening(func(l *drivers.Listener) {
			message := l.Message
			l.Message = func(channel, payload string) {
				if payload != "" {
					message(channel, payload)
				}
			}
		})},
	{name: "only the first channels count", fails: []string{
		"ConfirmedMeansDelivered", "LostWhenTheConnectionDies", "MessagesArrive", "SubscriptionDoesNotBlockCommands",
		"UnsubscribeStops",
	}, subscribe: subscribing(func(s *buggySubscription) {
		first := true
		s.subscribe = func(channels ...string) error {
			if !first {
				return s.Subscription.Subscribe()
			}
			first = len(channels) == 0 || strings.Contains(channels[0], binary)
			return s.Subscription.Subscribe(channels...)
		}
	})},
	{name: "a confirmation is made up", fails: []string{"ConfirmedMeansDelivered"}, subscribe: madeUp},
	{name: "Unsubscribe does nothing", fails: []string{"UnsubscribeStops"},
		subscribe: subscribing(func(s *buggySubscription) {
			s.unsubscribe = func(...string) error { return s.Subscription.Subscribe() }
		})},
	{name: "Unsubscribe is late", fails: []string{"UnsubscribeStops"},
		subscribe: subscribing(func(s *buggySubscription) {
			var late []string // takes effect only after the next Subscribe
			s.unsubscribe = func(channels ...string) error {
				if late == nil { // except for the first time, when no call need follow
					late = []string{}
					return s.Subscription.Unsubscribe(channels...)
				}
				late = channels
				return s.Subscription.Subscribe() // has no effect, unless the subscription has ended
			}
			s.subscribe = func(channels ...string) error {
				err := s.Subscription.Subscribe(channels...)
				if len(late) > 0 {
					err = errors.Join(err, s.Subscription.Unsubscribe(late...))
					late = late[:0]
				}
				return err
			}
		})},
	{name: "a lost connection is repaired", fails: []string{"LostWhenTheConnectionDies"}, subscribe: repair},
	{name: "nobody is told of the loss", fails: []string{"CloseEndsTheSubscription", "LostWhenTheConnectionDies"},
		subscribe: listening(func(l *drivers.Listener) {
			l.Lost = func(error) {}
		})},
	{name: "Lost comes twice", fails: []string{
		"CloseEndsTheSubscription", "ConfirmedMeansDelivered", "LostWhenTheConnectionDies", "MessagesArrive",
		"SubscribeKeepsToTheContext", "SubscriptionDoesNotBlockCommands", "UnsubscribeStops",
	}, subscribe: listening(func(l *drivers.Listener) {
		lost := l.Lost
		l.Lost = func(err error) {
			lost(err)
			lost(err)
		}
	})},
	{name: "a failed opening is reported as a loss",
		fails: []string{"SubscribeKeepsToTheContext", "SubscriptionRefused"},
		subscribe: func(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
			sub, err := b.sound.Subscribe(ctx, l)
			if err != nil {
				l.Lost(err)
			}
			return sub, err
		}},
	{name: "the opening ignores its context", fails: []string{"SubscribeKeepsToTheContext"},
		subscribe: func(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
			return b.sound.Subscribe(context.WithoutCancel(ctx), l)
		}},
	{name: "the opening ignores cancellation", fails: []string{"SubscribeKeepsToTheContext"},
		subscribe: func(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
			deadline, bounded := ctx.Deadline()
			if ctx = context.WithoutCancel(ctx); bounded {
				var cancel func()
				ctx, cancel = context.WithDeadline(ctx, deadline)
				defer cancel()
			}
			return b.sound.Subscribe(ctx, l)
		}},
	{name: "the context of the opening ends the subscription", fails: []string{"SubscribeKeepsToTheContext"},
		subscribe: func(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
			sub, err := b.sound.Subscribe(ctx, l)
			if _, bounded := ctx.Deadline(); err == nil && !bounded {
				context.AfterFunc(ctx, func() { _ = sub.Close() })
			}
			return sub, err
		}},
	{name: "Close does not wait", fails: []string{"CloseEndsTheSubscription"},
		subscribe: func(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
			lost := l.Lost
			l.Lost = func(err error) {
				time.Sleep(10 * time.Millisecond)
				lost(err)
			}
			sub, err := b.sound.Subscribe(ctx, l)
			if err != nil {
				return nil, err
			}
			return buggySubscription{Subscription: sub, close: func() error {
				go func() { _ = sub.Close() }()
				return nil
			}}, nil
		}},
	{name: "Close asks the server", fails: []string{"CloseEndsTheSubscription", "ConfirmedMeansDelivered"},
		subscribe: polite},
	{
		name: "the driver's Close leaves subscriptions alone", fails: []string{"CloseEndsTheSubscription"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if b.closed.Load() {
				return nil, drivers.ErrClosed
			}
			return b.Driver.Do(ctx, cmds...)
		},
		close: func(b *buggy) error {
			b.closed.Store(true)
			return nil
		},
		subscribe: func(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
			if b.closed.Load() {
				return nil, drivers.ErrClosed
			}
			return b.sound.Subscribe(ctx, l)
		},
	},
	{
		name: "a subscription takes the only connection", fails: []string{"SubscriptionDoesNotBlockCommands"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			b.mu.Lock()
			open := b.count
			b.mu.Unlock()
			if open > 0 {
				return nil, drivers.NotSent(errors.New("no connection is free"))
			}
			return b.Driver.Do(ctx, cmds...)
		},
		subscribe: func(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
			sub, err := b.sound.Subscribe(ctx, l)
			if err == nil {
				b.mu.Lock()
				b.count++
				b.mu.Unlock()
			}
			return sub, err
		},
	},
	{name: "a refusal is any error", fails: []string{"SubscriptionRefused"},
		subscribe: func(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
			sub, err := b.sound.Subscribe(ctx, l)
			var refusal drivers.ServerError
			if errors.As(err, &refusal) {
				err = errors.New(refusal.Error())
			}
			return sub, err
		}},
}
