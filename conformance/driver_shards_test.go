package conformance

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
)

// clusterHarness is a soundHarness with a cluster. spoil may replace the driver of the cluster.
func clusterHarness(t *testing.T, c *redistest.Cluster, spoil func(drivers.Driver) drivers.Driver) DriverHarness {
	h := soundHarness(t)
	h.Cluster = func(testing.TB) []string { return c.Addrs() }
	h.OpenCluster = func(t testing.TB, addrs []string) drivers.Driver {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
		t.Cleanup(func() { _ = client.Close() })
		return spoil(goredisdriver.New(client))
	}
	return h
}

func same(d drivers.Driver) drivers.Driver { return d }

func TestSoundClusterDriverPasses(t *testing.T) {
	c := redistest.StartCluster(t, 2, false)
	verdicts := recordInRealTime(t, clusterHarness(t, c, same), shardProperties)
	assert.Empty(t, failures(verdicts))
	for name, v := range verdicts {
		assert.False(t, v.skipped, name)
	}
	plain := func(d drivers.Driver) drivers.Driver { return &buggy{Driver: d} }
	for name, v := range recordInRealTime(t, clusterHarness(t, c, plain), shardProperties) {
		assert.True(t, v.skipped, name)
	}
}

// buggyShards breaks a sound driver of a cluster.
type buggyShards struct {
	drivers.Driver
	bug shardBug

	mu   sync.Mutex
	seen map[string]bool
}

type shardBug struct {
	name  string
	fails []string // exactly the properties that notice the bug
	// subscribe replaces SubscribeShard. sound is the one of the sound driver.
	subscribe func(b *buggyShards, ctx context.Context, channel string, l drivers.Listener, sound shardSubscribe) (
		drivers.Subscription, error)
	close bool // Close does nothing
}

type shardSubscribe = func(context.Context, string, drivers.Listener) (drivers.Subscription, error)

func (b *buggyShards) SubscribeShard(
	ctx context.Context, channel string, l drivers.Listener,
) (drivers.Subscription, error) {
	sound := b.Driver.(drivers.ShardSubscriber).SubscribeShard
	if b.bug.subscribe == nil {
		return sound(ctx, channel, l)
	}
	return b.bug.subscribe(b, ctx, channel, l, sound)
}

func (b *buggyShards) Close() error {
	if b.bug.close {
		return nil
	}
	return b.Driver.Close()
}

// again reports whether it was called with channel before.
func (b *buggyShards) again(channel string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	again := b.seen[channel]
	b.seen[channel] = true
	return again
}

var shardBugs = []shardBug{
	{name: "messages are cut at zero bytes", fails: []string{"ShardMessagesArrive"},
		subscribe: func(_ *buggyShards, ctx context.Context, channel string, l drivers.Listener, sound shardSubscribe) (
			drivers.Subscription, error) {
			message := l.Message
			l.Message = func(channel, payload string) {
				payload, _, _ = strings.Cut(payload, "\x00")
				message(channel, payload)
			}
			return sound(ctx, channel, l)
		}},
	{name: "Unsubscribe does nothing", fails: []string{"ShardUnsubscribeStops"},
		subscribe: func(_ *buggyShards, ctx context.Context, channel string, l drivers.Listener, sound shardSubscribe) (
			drivers.Subscription, error) {
			sub, err := sound(ctx, channel, l)
			return buggySubscription{Subscription: sub, unsubscribe: func(...string) error { return nil }}, err
		}},
	{name: "Unsubscribe ends the subscription", fails: []string{"ShardUnsubscribeStops"},
		subscribe: func(_ *buggyShards, ctx context.Context, channel string, l drivers.Listener, sound shardSubscribe) (
			drivers.Subscription, error) {
			sub, err := sound(ctx, channel, l)
			return buggySubscription{Subscription: sub, unsubscribe: func(...string) error { return sub.Close() }}, err
		}},
	{name: "the end of a subscription is not told, but by Close", fails: []string{"ShardEndsWithTheSlot"},
		subscribe: func(_ *buggyShards, ctx context.Context, channel string, l drivers.Listener, sound shardSubscribe) (
			drivers.Subscription, error) {
			lost := l.Lost
			l.Lost = func(err error) {
				if err.Error() != "the slot has moved to another server" {
					lost(err)
				}
			}
			return sound(ctx, channel, l)
		}},
	{name: "a redirection is returned", fails: []string{"ShardFollowsTheSlot"},
		subscribe: func(b *buggyShards, ctx context.Context, channel string, l drivers.Listener, sound shardSubscribe) (
			drivers.Subscription, error) {
			if b.again(channel) && strings.HasSuffix(channel, "follows") {
				return nil, drivers.ServerError("MOVED 1 127.0.0.1:1")
			}
			return sound(ctx, channel, l)
		}},
	{name: "a refusal is any error", fails: []string{"ShardRefusalEnds"},
		subscribe: func(_ *buggyShards, ctx context.Context, channel string, l drivers.Listener, sound shardSubscribe) (
			drivers.Subscription, error) {
			lost := l.Lost
			l.Lost = func(err error) {
				if _, refused := err.(drivers.ServerError); refused {
					err = context.Canceled
				}
				lost(err)
			}
			return sound(ctx, channel, l)
		}},
	{name: "the driver's Close leaves subscriptions alone", fails: []string{"ShardClose"}, close: true},
	{name: "the context is ignored", fails: []string{"ShardClose"},
		subscribe: func(_ *buggyShards, ctx context.Context, channel string, l drivers.Listener, sound shardSubscribe) (
			drivers.Subscription, error) {
			return sound(context.WithoutCancel(ctx), channel, l)
		}},
}

// Each bug is noticed by exactly the listed properties, and each property notices one alone.
func TestShardPropertiesNotice(t *testing.T) {
	var alone []string
	c := redistest.StartCluster(t, 2, false)
	for _, bug := range shardBugs {
		alone = append(alone, bug.fails[0])
	}
	for _, bug := range short.Part(t, 3, shardBugs) {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			h := clusterHarness(t, c, func(d drivers.Driver) drivers.Driver {
				return &buggyShards{Driver: d, bug: bug, seen: map[string]bool{}}
			})
			failed := failures(recordInRealTime(t, h, shardProperties))
			for name, log := range failed {
				assert.Contains(t, log, "the rule of "+name+": ")
			}
			assert.Equal(t, bug.fails, slices.Sorted(maps.Keys(failed)), "%v", failed)
		})
	}
	eachHasItsOwn(t, shardProperties, alone)
	explained(t, shardProperties)
}
