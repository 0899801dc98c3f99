package conformance

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/golocker/locker/drivers"
)

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
