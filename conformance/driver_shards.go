package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
)

// shardProperties are those of a driver that implements drivers.ShardSubscriber.
var shardProperties = []property[DriverHarness]{
	{
		"ShardMessagesArrive",
		"Messages on sharded channels arrive in order and byte for byte, and a script that publishes one is told of the " +
			"subscriber.",
		"A release grants a lock only to a waiter that its script knows to be reachable, so a subscription at another " +
			"server is useless.",
		shardMessagesArrive,
	},
	{
		"ShardUnsubscribeStops",
		"Unsubscribe ends the messages of its sharded channels, and not the subscription.",
		"If waiters that leave end the subscription, the others of the slot are not told for a moment.",
		shardUnsubscribeStops,
	},
	{
		"ShardEndsWithTheSlot",
		"When the slot moves to another server, the subscription ends, and subscriptions to other slots do not.",
		"Nobody publishes at the old server any more: waiters that do not learn of that wait for nothing.",
		shardEndsWithTheSlot,
	},
	{
		"ShardFollowsTheSlot",
		"SubscribeShard subscribes at the server that has the slot, although the client knows another one.",
		"Slots move while nobody waits, and a client that is refused for that leaves its waiters polling.",
		shardFollowsTheSlot,
	},
	{
		"ShardRefusalEnds",
		"If the server refuses a channel, the subscription ends with a ServerError.",
		"A waiter that believes in a channel to which nobody has subscribed it is not told.",
		shardRefusalEnds,
	},
	{
		"ShardClose",
		"Close of a sharded subscription, or of its driver, returns soon, after Lost, and ends the subscription on the " +
			"server. Afterwards the driver opens no other one.",
		"A subscription that stays counts as a waiter that is reachable, and is granted locks that nobody uses.",
		shardClose,
	},
}

// shards is a cluster and a driver of it.
type shards struct {
	d       drivers.ShardSubscriber
	close   func() error     // of the driver
	servers []drivers.Driver // of single servers, in the order of the addresses
}

func openShards(t testing.TB, h DriverHarness) *shards {
	t.Helper()
	if h.Cluster == nil || h.OpenCluster == nil {
		t.Skip("the harness has no Cluster or no OpenCluster")
	}
	addrs := h.Cluster(t)
	whole := closeAtEnd(t, h.OpenCluster(t, addrs))
	d, ok := whole.(drivers.ShardSubscriber)
	if !ok {
		t.Skip("the driver does not implement drivers.ShardSubscriber: waiters poll")
	}
	s := &shards{d: d, close: whole.Close}
	for _, addr := range addrs {
		s.servers = append(s.servers, openDriver(t, h, addr))
	}
	if len(addrs) < 2 {
		t.Fatal("conformance: the harness gave a cluster of less than two servers")
	}
	return s
}

// newTag returns the beginning of names that share a slot, which is one of the server with the given index.
func (s *shards) newTag(t testing.TB, server int) string {
	t.Helper()
	for {
		if tag := "conformance:{" + rand.Text() + "}:"; s.owner(t, tag) == server {
			return tag
		}
	}
}

// owner returns the index of the server that has the slot of a name.
func (s *shards) owner(t testing.TB, name string) int {
	t.Helper()
	for end := time.Now().Add(hangLimit); ; time.Sleep(10 * time.Millisecond) {
		for i, server := range s.servers {
			if _, has := must(t, server, drivers.Command{"EXISTS", name})[0].(int64); has {
				return i
			}
		}
		if time.Now().After(end) {
			t.Fatalf("expected a server of the cluster to have a slot, seen none")
		}
	}
}

// subscribe opens a subscription to channel.
func (s *shards) subscribe(t testing.TB, channel string) (drivers.Subscription, *callLog) {
	t.Helper()
	e := newEar(t)
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	sub, err := s.d.SubscribeShard(ctx, channel, e.listener())
	if err != nil {
		t.Fatalf("SubscribeShard: expected no error, seen %v", err)
	}
	t.Cleanup(func() { closeSoon(t, "Close of the subscription", sub.Close) })
	e.await(t, event{"subscribed", channel, ""})
	return sub, e
}

// publish lets a script publish at the server that has the slot.
func (s *shards) publish(t testing.TB, channel, payload string) (receivers int64) {
	t.Helper()
	const script = "return redis.call('SPUBLISH', KEYS[1], ARGV[1])"
	var reply drivers.Reply
	published := until(hangLimit, func() (ok bool) { // a server that stood still is out of the cluster for a moment
		reply = must(t, s.servers[s.owner(t, channel)], drivers.Command{"EVAL", script, "1", channel, payload})[0]
		receivers, ok = reply.(int64)
		return ok
	})
	if !published {
		t.Fatalf("expected the cluster to publish, seen %v", reply)
	}
	return receivers
}

// moving is held while a slot moves. If two slots moved in opposite directions at the same time, a server could
// announce with its new epoch that it has the slot that it is about to give away.
var moving sync.Mutex

// move moves the slot of a name, which has no keys, to the server with the given index.
func (s *shards) move(t testing.TB, name string, to int) {
	t.Helper()
	moving.Lock()
	defer moving.Unlock()
	from := s.owner(t, name)
	slot := fmt.Sprint(must(t, s.servers[from], drivers.Command{"CLUSTER", "KEYSLOT", name})[0])
	id := func(i int) string { return fmt.Sprint(must(t, s.servers[i], drivers.Command{"CLUSTER", "MYID"})[0]) }
	set := func(server int, how, id string) {
		t.Helper()
		if reply := must(t, s.servers[server], drivers.Command{"CLUSTER", "SETSLOT", slot, how, id})[0]; reply != "OK" {
			t.Fatalf("conformance: CLUSTER SETSLOT: expected OK, seen %v", reply)
		}
	}
	set(to, "IMPORTING", id(from))
	set(from, "MIGRATING", id(to))
	set(to, "NODE", id(to))
	set(from, "NODE", id(to))
	// If the slot moved back before all know the epoch of its owner, its next owner could take it without an epoch of its
	// own. A message that is under way from the last one would then take it away again, and no server would have it.
	agreed := until(hangLimit, func() bool { return s.epoch(t, from) == s.epoch(t, to) })
	if !agreed {
		t.Fatalf("conformance: expected the servers of the cluster to agree on its epoch, seen %s and %s",
			s.epoch(t, from), s.epoch(t, to))
	}
}

// epoch returns the newest epoch of the cluster that a server knows.
func (s *shards) epoch(t testing.TB, server int) string {
	t.Helper()
	info := fmt.Sprint(must(t, s.servers[server], drivers.Command{"CLUSTER", "INFO"})[0])
	_, epoch, _ := strings.Cut(info, "cluster_current_epoch:")
	epoch, _, _ = strings.Cut(epoch, "\r")
	return epoch
}

func shardMessagesArrive(t testing.TB, h DriverHarness) {
	s := openShards(t, h)
	for server := range s.servers {
		tag := s.newTag(t, server)
		a, b, other := tag+"a", tag+"b"+binary, tag+"other"
		sub, e := s.subscribe(t, a)
		if err := sub.Subscribe(b); err != nil {
			t.Fatalf("Subscribe to another channel of the slot: expected no error, seen %v", err)
		}
		e.await(t, event{"subscribed", b, ""})
		var want []event
		for i, payload := range []string{"", binary, "ssubscribe", a, "last"} {
			channel := []string{a, b}[i%2]
			if n := s.publish(t, channel, payload); n != 1 {
				t.Errorf("a script that published: expected it to be told of 1 subscriber, seen %d", n)
			}
			s.publish(t, other, payload)
			want = append(want, event{"message", channel, payload})
		}
		e.await(t, want[len(want)-1])
		if seen := e.messages(); !slices.Equal(want, seen) {
			t.Errorf("messages: expected %s, seen %s", show(want), show(seen))
		}
	}
}

func shardUnsubscribeStops(t testing.TB, h DriverHarness) {
	s := openShards(t, h)
	tag := s.newTag(t, 0)
	gone, stays := tag+"gone", tag+"stays"
	sub, e := s.subscribe(t, stays)
	for range 3 {
		if err := errors.Join(sub.Subscribe(gone), sub.Unsubscribe(gone)); err != nil {
			t.Fatalf("Subscribe and Unsubscribe: expected no error, seen %v", err)
		}
	}
	s.waitUntilUnsubscribed(t, gone)
	s.publish(t, stays, "last")
	e.await(t, event{"message", stays, "last"})
}

// waitUntilUnsubscribed waits until the channel has no subscribers.
func (s *shards) waitUntilUnsubscribed(t testing.TB, channel string) {
	t.Helper()
	var receivers int64
	for end := time.Now().Add(recovery); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if receivers = s.publish(t, channel, "anybody?"); receivers == 0 {
			return
		}
	}
	t.Errorf("expected nobody to be subscribed any more within %v, seen %d", recovery, receivers)
}

func shardEndsWithTheSlot(t testing.TB, h DriverHarness) {
	s := openShards(t, h)
	moves, stays := s.newTag(t, 0)+"moves", s.newTag(t, 0)+"stays"
	_, e := s.subscribe(t, moves)
	_, other := s.subscribe(t, stays)
	s.move(t, moves, 1)
	e.awaitLost(t)
	s.publish(t, stays, "still here")
	other.await(t, event{"message", stays, "still here"})
}

func shardFollowsTheSlot(t testing.TB, h DriverHarness) {
	s := openShards(t, h)
	channel := s.newTag(t, 0) + "follows"
	first, _ := s.subscribe(t, channel) // the client knows the slots by now
	closeSoon(t, "Close of the subscription", first.Close)
	for _, to := range []int{1, 0} {
		s.move(t, channel, to)
		_, e := s.subscribe(t, channel)
		if n := s.publish(t, channel, "here"); n != 1 {
			t.Errorf("a script of the server that has the slot now: expected it to be told of 1 subscriber, seen %d", n)
		}
		e.await(t, event{"message", channel, "here"})
	}
}

func shardRefusalEnds(t testing.TB, h DriverHarness) {
	s := openShards(t, h)
	sub, e := s.subscribe(t, s.newTag(t, 0)+"here")
	_ = sub.Subscribe(s.newTag(t, 1) + "elsewhere")
	e.awaitLost(t)
	var refusal drivers.ServerError
	if e.mu.Lock(); !errors.As(e.err, &refusal) {
		t.Errorf("Lost: expected the ServerError of a channel of another server, seen %v", e.err)
	}
	e.mu.Unlock()
	if sub.Subscribe(s.newTag(t, 0)) == nil {
		t.Errorf("Subscribe on a subscription that has ended: expected an error, seen none")
	}
}

func shardClose(t testing.TB, h DriverHarness) {
	s := openShards(t, h)
	channel := s.newTag(t, 1) + "channel"
	sub, e := s.subscribe(t, channel)
	s.checkClosed(t, "Close of the subscription", channel, e, sub.Close)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.d.SubscribeShard(ended, channel, newEar(t).listener()); err == nil {
		t.Errorf("SubscribeShard with a context that has ended: expected an error, seen none")
	}
	_, e = s.subscribe(t, channel)
	s.checkClosed(t, "the driver's Close", channel, e, s.close)
	if _, err := s.d.SubscribeShard(t.Context(), channel, newEar(t).listener()); !errors.Is(err, drivers.ErrClosed) {
		t.Errorf("SubscribeShard after the driver's Close: expected an error that matches ErrClosed, seen %v", err)
	}
}

// checkClosed calls end, which is to end the subscription to channel.
func (s *shards) checkClosed(t testing.TB, what, channel string, e *callLog, end func() error) {
	t.Helper()
	closeSoon(t, what, end)
	if !slices.Contains(e.recorded(), event{"lost", "", ""}) {
		t.Errorf("%s: expected Lost before it returned, seen none", what)
	} else if !errors.Is(e.err, drivers.ErrClosed) {
		t.Errorf("%s: expected Lost with an error that matches ErrClosed, seen %v", what, e.err)
	}
	s.waitUntilUnsubscribed(t, channel)
}
