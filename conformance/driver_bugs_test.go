package conformance

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
)

var bugs = []bug{
	{name: "nil is an empty string", fails: []string{"ReplyTypes"}, do: each(func(r drivers.Reply) drivers.Reply {
		if r == nil {
			return ""
		}
		return r
	})},
	{name: "nil is an error", fails: []string{"ReplyTypes"},
		do: replies(func(_ []drivers.Command, replies []drivers.Reply) error {
			if slices.Contains(replies, nil) {
				return errors.New("redis: nil")
			}
			return nil
		})},
	{name: "text is cut at zero bytes", fails: []string{"ReplyTypes"}, do: each(func(r drivers.Reply) drivers.Reply {
		if s, ok := r.(string); ok {
			r, _, _ = strings.Cut(s, "\x00")
		}
		return r
	})},
	{name: "one refusal is an error", fails: []string{"ServerErrorIsReply"},
		do: replies(func(_ []drivers.Command, replies []drivers.Reply) error {
			if e, ok := replies[0].(drivers.ServerError); ok && len(replies) == 1 && e.Code() != "NOAUTH" {
				return e
			}
			return nil
		})},
	{name: "ERR is taken off", fails: []string{"ServerErrorIsReply"}, do: each(func(r drivers.Reply) drivers.Reply {
		if e, ok := r.(drivers.ServerError); ok {
			return drivers.ServerError(strings.TrimPrefix(string(e), "ERR "))
		}
		return r
	})},
	{name: "a refused handshake is an error", fails: []string{"RefusedConnectionIsReply"},
		do: replies(func(_ []drivers.Command, replies []drivers.Reply) error {
			if e, ok := replies[0].(drivers.ServerError); ok && e.Code() == "NOAUTH" {
				return drivers.NotSent(e)
			}
			return nil
		})},
	{name: "a refusal fails the batch", fails: []string{"BatchKeepsRepliesAroundErrors"},
		do: replies(func(_ []drivers.Command, replies []drivers.Reply) error {
			for _, r := range replies {
				if e, ok := r.(drivers.ServerError); ok && len(replies) > 1 && e.Code() != "NOAUTH" {
					return e
				}
			}
			return nil
		})},
	{name: "a refusal hides what follows", fails: []string{"BatchKeepsRepliesAroundErrors"},
		do: replies(func(_ []drivers.Command, replies []drivers.Reply) error {
			for i := range replies[1:] {
				if e, ok := replies[i].(drivers.ServerError); ok {
					replies[i+1] = e
				}
			}
			return nil
		})},
	{name: "long batches are shuffled", fails: []string{"BatchOrder"},
		do: replies(func(_ []drivers.Command, replies []drivers.Reply) error {
			if len(replies) > 50 {
				replies[40], replies[50] = replies[50], replies[40]
			}
			return nil
		})},
	{
		name: "a reply too few", fails: []string{"BatchOrder"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			replies, err := b.Driver.Do(ctx, cmds...)
			if len(replies) > 50 {
				replies = replies[:50]
			}
			return replies, err
		},
	},
	{
		name: "a batch is spread over connections", fails: []string{"BatchUsesOneConnection"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if len(cmds) != 3 || cmds[0][0] != "CLIENT" {
				return b.Driver.Do(ctx, cmds...)
			}
			var rest []drivers.Reply
			var restErr error
			var calls sync.WaitGroup
			calls.Go(func() { rest, restErr = b.Driver.Do(ctx, cmds[1:]...) })
			first, err := b.Driver.Do(ctx, cmds[0])
			calls.Wait()
			return append(first, rest...), errors.Join(err, restErr)
		},
	},
	{
		name: "WAIT holds up the others", fails: []string{"WaitBlocksNobodyElse"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if cmds[len(cmds)-1][0] == "WAIT" {
				b.connection.Lock()
				defer b.connection.Unlock()
			} else {
				b.connection.RLock()
				defer b.connection.RUnlock()
			}
			return b.Driver.Do(ctx, cmds...)
		},
	},
	{
		name: "a replica is not left", fails: []string{"LeavesAReplica"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			last := cmds[len(cmds)-1]
			if last[0] != "EVAL" || !strings.Contains(last[1], "READONLY") {
				return b.Driver.Do(ctx, cmds...)
			}
			return drivers.Refused("READONLY You can't write against a read only replica.", len(cmds)), nil
		},
	},
	{name: "commands are modified", fails: []string{"CommandsStayTheCallers"},
		do: replies(func(cmds []drivers.Command, _ []drivers.Reply) error {
			for _, cmd := range cmds {
				cmd[0] = strings.ToUpper(cmd[0])
			}
			return nil
		})},
	{
		name: "empty script arguments are lost", fails: []string{"ScriptsRoundTrip"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			cmds = slices.Clone(cmds)
			for i, cmd := range cmds {
				if cmd[0] == "EVALSHA" {
					cmds[i] = slices.DeleteFunc(slices.Clone(cmd), func(arg string) bool { return arg == "" })
				}
			}
			return b.Driver.Do(ctx, cmds...)
		},
	},
	{name: "long values are cut", fails: []string{"LargeValues"}, do: each(func(r drivers.Reply) drivers.Reply {
		if s, ok := r.(string); ok && len(s) > 1<<16 {
			return s[:1<<16]
		}
		return r
	})},
	{
		name: "callers share a buffer", fails: []string{"Concurrent"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if cmds[len(cmds)-1][0] == "WAIT" { // another property would notice by chance
				return b.Driver.Do(ctx, cmds...)
			}
			b.mu.Lock()
			b.cmds = cmds
			b.mu.Unlock()
			runtime.Gosched()
			b.mu.Lock()
			cmds = b.cmds
			b.mu.Unlock()
			return b.Driver.Do(ctx, cmds...)
		},
	},
	{
		name: "a failed dial may have been sent", fails: []string{"OpensWhileDown", "UnreachableIsNotSent"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			replies, err := b.Driver.Do(ctx, cmds...)
			if drivers.DialFailed(errors.Unwrap(err)) || err != nil && strings.Contains(err.Error(), "dial") {
				err = errors.New(err.Error())
			}
			return replies, err
		},
	},
	{
		name: "a batch whose dial failed may have been sent", fails: []string{"UnreachableIsNotSent"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			replies, err := b.Driver.Do(ctx, cmds...)
			if err != nil && len(cmds) > 1 && strings.Contains(err.Error(), "dial") {
				err = errors.New(err.Error())
			}
			return replies, err
		},
	},
	{
		name: "all wait for the first to be connected", fails: []string{"DeadlineBounds"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if b.connected.Load() || ctx.Err() != nil {
				return b.Driver.Do(ctx, cmds...)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			replies, err := b.Driver.Do(ctx, cmds...)
			b.connected.Store(err == nil)
			return replies, err
		},
	},
	{
		name: "every error claims that nothing was sent", fails: []string{"NotSentIsCertain"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			replies, err := b.Driver.Do(ctx, cmds...)
			if err != nil {
				err = drivers.NotSent(err)
			}
			return replies, err
		},
	},
	{
		name: "a lost reply is asked for again", fails: []string{"AtMostOnce"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			replies, err := b.Driver.Do(ctx, cmds...)
			if err != nil && !errors.Is(err, drivers.ErrNotSent) && ctx.Err() == nil {
				// Without this condition NotSentIsCertain would fail as well.
				if again, err2 := b.Driver.Do(ctx, cmds...); !errors.Is(err2, drivers.ErrNotSent) {
					return again, err2
				}
			}
			return replies, err
		},
	},
	{
		name: "a lost reply is made up", fails: []string{"AtMostOnce", "DeadlineBounds", "RecoversAfterOutage"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			replies, err := b.Driver.Do(ctx, cmds...)
			if err != nil && !errors.Is(err, drivers.ErrNotSent) {
				return make([]drivers.Reply, len(cmds)), nil
			}
			return replies, err
		},
	},
	{
		name: "deadlines are ignored", fails: []string{"DeadlineBounds", "NotSentIsCertain"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if err := ctx.Err(); err != nil {
				return nil, drivers.NotSent(err)
			}
			return b.Driver.Do(context.WithoutCancel(ctx), cmds...)
		},
	},
	{
		name: "only Done is looked at", fails: []string{"DeadlineWithoutDone"}, direct: true,
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if err := ctx.Err(); err == nil && ctx.Done() == nil {
				ctx = context.Background()
			}
			return b.Driver.Do(ctx, cmds...)
		},
	},
	{
		name: "a connection is used again although a reply is to come", fails: []string{"LateRepliesAreNobodys"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if err := ctx.Err(); err != nil {
				return nil, drivers.NotSent(err)
			}
			b.mu.Lock()
			late := b.late
			b.late = nil
			b.mu.Unlock()
			if len(late) == len(cmds) {
				return late, nil
			}
			type result struct {
				replies []drivers.Reply
				err     error
			}
			done := make(chan result, 1)
			go func() {
				replies, err := b.Driver.Do(context.WithoutCancel(ctx), cmds...)
				if err == nil && ctx.Err() != nil {
					b.mu.Lock()
					defer b.mu.Unlock()
					b.late = replies
				}
				done <- result{replies, err}
			}()
			select {
			case r := <-done:
				return r.replies, r.err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	},
	{
		name: "an ended context is not noticed", fails: []string{"EndedContextSendsNothing"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			// If the machine stalls, the context of another property may have ended, too, but not before 2000.
			if end, timed := ctx.Deadline(); ctx.Err() != nil && (!timed || end.Year() < 2000) && !b.closed.Load() {
				ctx = context.WithoutCancel(ctx)
			}
			return b.Driver.Do(ctx, cmds...)
		},
	},
	{
		name: "a failed first dial is final", fails: []string{"OpensWhileDown"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			b.mu.Lock()
			err := b.err
			b.mu.Unlock()
			if err != nil {
				return nil, err
			}
			replies, err := b.Driver.Do(ctx, cmds...)
			b.mu.Lock()
			defer b.mu.Unlock()
			if err != nil && b.count == 0 && ctx.Err() == nil {
				b.err = err
			}
			b.count++
			return replies, err
		},
	},
	{
		name: "three failures are final", fails: []string{"RecoversAfterOutage"},
		do: func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			b.mu.Lock()
			err, count := b.err, b.count
			b.mu.Unlock()
			if count >= 3 {
				return nil, err
			}
			replies, err := b.Driver.Do(ctx, cmds...)
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.err = err; err == nil || ctx.Err() != nil {
				b.count = 0
			} else {
				b.count++
			}
			return replies, err
		},
	},
	{name: "Close does nothing", fails: []string{"CloseIsIdempotentAndFinal"}, close: func(*buggy) error { return nil }},
	{name: "a second Close fails", fails: []string{"CloseIsIdempotentAndFinal"}, close: func(b *buggy) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.count++; b.count == 2 {
			return errors.New("closed already")
		}
		return b.Driver.Close()
	}},
}

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
