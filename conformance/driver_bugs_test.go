package conformance

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"

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
