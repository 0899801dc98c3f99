package conformance

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/redigodriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/virtual"
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
		return redigodriver.New(pool)
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
	late   []drivers.Reply // to a call that has ended
	err    error
	count  int
	closed atomic.Bool

	connected atomic.Bool

	connection sync.RWMutex // the only one, which WAIT blocks
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

// TestDriverSuiteNotices plants one bug at a time, and expects exactly the listed properties to fail.
func TestDriverSuiteNotices(t *testing.T) {
	sound := soundHarness(t)
	for _, bug := range short.Part(t, 12, slices.Concat(bugs, subscriberBugs)) {
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
					t.Logf("%q failed while this process stood still for %v: once more", names, longest)
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

// slowDriver needs some time for each call, and loses all progress when the context of a call ends.
type slowDriver struct {
	drivers.Driver
	needs time.Duration
}

func (d slowDriver) Do(ctx context.Context, _ ...drivers.Command) ([]drivers.Reply, error) {
	select {
	case <-time.After(d.needs):
		return []drivers.Reply{"PONG"}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A driver on a busy machine is slow and nevertheless recovers.
func TestEventuallyHasPatienceWithASlowDriver(t *testing.T) {
	for needs, want := range map[time.Duration]bool{
		900 * time.Millisecond: true, 1500 * time.Millisecond: true, recovery / 2: true, 2 * recovery: false,
	} {
		t.Run(needs.String(), func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				trial := newTrial(t)
				trial.run(func() { eventually(trial, slowDriver{needs: needs}, drivers.Command{"PING"}) })
				assert.Equal(t, want, !trial.Failed(), trial.texts())
			})
		})
	}
}

// A relay that is down must not lose its address to another one.
func TestRelaysHaveDifferentAddresses(t *testing.T) {
	seen := map[string]bool{}
	for range 2000 {
		addr := freeAddr()
		require.False(t, seen[addr], addr)
		seen[addr] = true
	}
}
