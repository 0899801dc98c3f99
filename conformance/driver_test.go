package conformance

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/redigo"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	recovery, many = 5*time.Second, 150
	goleak.VerifyTestMain(m)
}

// soundHarness builds a driver that keeps every promise. Its connection pool has no time-outs, so that only the driver
// enforces deadlines.
func soundHarness(t *testing.T) DriverHarness {
	plain, locked := redistest.Start(t), redistest.Start(t, "--requirepass", "pw")
	open := func(t testing.TB, addr string) drivers.Driver {
		pool := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", addr, redis.DialPassword(""))
		}}
		t.Cleanup(func() { _ = pool.Close() })
		return redigo.New(pool)
	}
	return DriverHarness{
		Open:    open,
		Addr:    func(testing.TB) string { return plain.Addr() },
		Refused: func(t testing.TB) drivers.Driver { return open(t, locked.Addr()) },
	}
}

func TestSoundDriverPasses(t *testing.T) {
	h := soundHarness(t)
	RunDriver(t, h)
	h.Refused = nil
	verdicts := recordInRealTime(t, h, driverProperties)
	assert.Empty(t, failures(verdicts))
	assert.True(t, verdicts["RefusedConnectionIsReply"].skipped)
	assert.True(t, verdicts["SubscriptionRefused"].skipped)
}

func TestDriverThatIsNoSubscriber(t *testing.T) {
	h := soundHarness(t)
	sound := h
	h.Open = func(t testing.TB, addr string) drivers.Driver { return &buggy{Driver: sound.Open(t, addr)} }
	h.Refused = func(t testing.TB) drivers.Driver { return &buggy{Driver: sound.Refused(t)} }
	verdicts := recordInRealTime(t, h, driverProperties)
	assert.Empty(t, failures(verdicts))
	skipped := []string{}
	for name, v := range verdicts {
		if v.skipped {
			skipped = append(skipped, name)
			assert.Contains(t, v.log, "does not implement drivers.Subscriber")
		}
	}
	slices.Sort(skipped)
	assert.Equal(t, []string{
		"CloseEndsTheSubscription", "ConfirmedMeansDelivered", "LostWhenTheConnectionDies", "MessagesArrive",
		"SubscribeKeepsToTheContext", "SubscriptionDoesNotBlockCommands", "SubscriptionRefused", "UnsubscribeStops",
	}, skipped)
}

// bug breaks a sound driver. do replaces Do unless it is nil. Without subscribe the driver does not implement
// Subscriber.
type bug struct {
	name  string
	fails []string // exactly the properties that notice the bug
	do    func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error)
	close func(b *buggy) error
	// direct makes the driver implement drivers.Direct for every call.
	direct bool

	subscribe func(b *buggySubscriber, ctx context.Context, l drivers.Listener) (drivers.Subscription, error)
}

type buggy struct {
	drivers.Driver
	bug bug

	mu     sync.Mutex
	cmds   []drivers.Command
	err    error
	count  int
	closed atomic.Bool

	connected atomic.Bool
}

// buggyDirect is a driver that wrongly promises to keep deadlines by itself.
type buggyDirect struct{ *buggy }

func (buggyDirect) Direct() bool { return true }

func (b *buggy) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if b.bug.do == nil {
		return b.Driver.Do(ctx, cmds...)
	}
	return b.bug.do(b, ctx, cmds)
}

func (b *buggy) Close() error {
	if b.bug.close == nil {
		return b.Driver.Close()
	}
	return b.bug.close(b)
}

// replies makes a bug from a function that changes the replies of each batch.
func replies(spoil func(cmds []drivers.Command, replies []drivers.Reply) error) func(*buggy, context.Context,
	[]drivers.Command) ([]drivers.Reply, error) {
	return func(b *buggy, ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		replies, err := b.Driver.Do(ctx, cmds...)
		if err == nil {
			err = spoil(cmds, replies)
		}
		return replies, err
	}
}

// each makes a bug from a function that changes single replies.
func each(spoil func(drivers.Reply) drivers.Reply) func(*buggy, context.Context, []drivers.Command) ([]drivers.Reply,
	error) {
	return replies(func(_ []drivers.Command, replies []drivers.Reply) error {
		for i := range replies {
			replies[i] = spoil(replies[i])
		}
		return nil
	})
}

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
			if ctx.Err() != nil && !b.closed.Load() {
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
	{name: "Close does nothing", fails: []string{"CloseIsIdempotentAndFinal"},
		close: func(*buggy) error { return nil }},
	{name: "a second Close fails", fails: []string{"CloseIsIdempotentAndFinal"}, close: func(b *buggy) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.count++; b.count == 2 {
			return errors.New("closed already")
		}
		return b.Driver.Close()
	}},
}

// TestDriverSuiteNotices plants one bug at a time, and expects exactly the listed properties to fail.
func TestDriverSuiteNotices(t *testing.T) {
	sound := soundHarness(t)
	for _, bug := range slices.Concat(bugs, subscriberBugs) {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			h := sound
			plant := func(d drivers.Driver) drivers.Driver {
				b := &buggy{Driver: d, bug: bug}
				if bug.direct {
					return buggyDirect{b}
				}
				if bug.subscribe != nil {
					return &buggySubscriber{b, d.(drivers.Subscriber)}
				}
				return b
			}
			h.Open = func(t testing.TB, addr string) drivers.Driver { return plant(sound.Open(t, addr)) }
			h.Refused = func(t testing.TB) drivers.Driver { return plant(sound.Refused(t)) }
			for n := 1; ; n++ {
				stall := watch()
				failed := failures(recordInRealTime(t, h, driverProperties))
				longest := stall()
				names := slices.Sorted(maps.Keys(failed))
				if n < maxTrials && longest >= tolerable && !slices.Equal(bug.fails, names) {
					// On a stalled machine a bug of timing may go unnoticed.
					t.Logf("%q failed while the machine stalled for %v: once more", names, longest)
					continue
				}
				for name, log := range failed {
					assert.Contains(t, log, "the rule of "+name+": ")
				}
				assert.Equal(t, bug.fails, names, "%v", failed)
				return
			}
		})
	}
}

// Every property has a bug that no other property notices.
func TestEveryDriverPropertyHasAFlaw(t *testing.T) {
	var alone []string
	for _, bug := range slices.Concat(bugs, subscriberBugs) {
		if len(bug.fails) == 1 {
			alone = append(alone, bug.fails[0])
		}
	}
	eachHasItsOwn(t, driverProperties, alone)
}
