package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
)

// DriverHarness describes the driver under test: how to open it, and which Redis to use.
type DriverHarness struct {
	// Open builds a driver for the server at addr (host:port). It is required. It must not fail if the server is down,
	// and must make a new client with each call. The suite closes the driver; Open registers everything else that has
	// to be closed with t.Cleanup. Some addresses are proxies in the test's process, so a driver with TLS must not
	// check the server's name.
	Open func(t testing.TB, addr string) drivers.Driver

	// Addr returns the address (host:port) of a running Redis that the suite may write to. It is required. Several
	// calls may return the same address. The keys of the suite begin with "conformance:" and are deleted at the end.
	Addr func(t testing.TB) string

	// Unreachable returns an address at which nobody listens. If it is nil, the suite uses 127.0.0.1:1.
	Unreachable func(t testing.TB) string

	// Cluster returns the addresses (host:port) of the masters of a running Redis Cluster, whose slots the suite may
	// move. It has at least two masters, and servers that know sharded channels: Redis 7, or Valkey. Several calls may
	// return the same cluster. Open must be able to reach each of its servers. If Cluster or OpenCluster is nil, the
	// properties of drivers.ShardSubscriber are skipped.
	Cluster func(t testing.TB) []string

	// OpenCluster builds a driver for the cluster of which servers are at addrs. It must make a new client with each
	// call, like Open. If the driver does not implement drivers.ShardSubscriber, its properties are skipped.
	OpenCluster func(t testing.TB, addrs []string) drivers.Driver

	// Refused builds a driver whose connections the server refuses, for example because of a wrong password. If it is
	// nil, the properties RefusedConnectionIsReply and SubscriptionRefused are skipped.
	Refused func(t testing.TB) drivers.Driver
}

// RunDriver checks a driver against the rules of [drivers.Driver], with one subtest per property. If the driver
// implements [drivers.Subscriber], or on a cluster [drivers.ShardSubscriber], it checks these rules as well; otherwise
// their properties are skipped.
func RunDriver(t *testing.T, h DriverHarness) {
	if h.Open == nil || h.Addr == nil {
		t.Fatal("conformance: DriverHarness needs Open and Addr")
	}
	run(t, h, nil, slices.Concat(driverProperties, shardProperties))
}

var driverProperties = []property[DriverHarness]{
	{
		"ReplyTypes",
		"The driver returns integers as int64, strings and statuses as string, arrays as []Reply and nil as nil, " +
			"and does not change their bytes.",
		"The lock protocol decides by these types whether a lock was granted: with another type it misses a grant, " +
			"or sees one that was not made.",
		replyTypes,
	},
	{
		"ServerErrorIsReply",
		"The driver returns a server's refusal as a ServerError with its exact text, in place of the command's " +
			"reply, and returns a nil error.",
		"The next step depends on the refusal, such as NOSCRIPT or READONLY; an error of Do would mean that the " +
			"outcome is unknown.",
		serverErrorIsReply,
	},
	{
		"RefusedConnectionIsReply",
		"If the server refuses the connection's handshake, every command's reply is a ServerError.",
		"If a wrong password is reported as a lost connection, the library retries and cleans up in vain, and the " +
			"operator does not learn the cause.",
		refusedConnectionIsReply,
	},
	{
		"BatchOrder",
		"Do returns one reply per command, in the order of the commands.",
		"Callers share batches: in another order, a caller gets the lock that was granted to another.",
		batchOrder,
	},
	{
		"BatchUsesOneConnection",
		"All commands of a call are sent on one connection, unless the driver is a drivers.Cluster.",
		"WAIT waits for what was written on its own connection: on another one it confirms locks that no replica has.",
		batchUsesOneConnection,
	},
	{
		"WaitBlocksNobodyElse",
		"While a call with WAIT at its end is blocked, other calls are answered.",
		"Otherwise one replica that is missing makes all callers wait, also those that release locks.",
		waitBlocksNobodyElse,
	},
	{
		"BatchKeepsRepliesAroundErrors",
		"A refused command of a batch neither stops the other commands nor hides their replies.",
		"Callers share batches: one caller's refusal must not turn the grants of others into unknown outcomes.",
		batchKeepsRepliesAroundErrors,
	},
	{
		"CommandsStayTheCallers",
		"The driver does not modify the commands.",
		"After NOSCRIPT the library sends commands again with the script's text: a modified command locks something " +
			"else.",
		commandsStayTheCallers,
	},
	{
		"ScriptsRoundTrip",
		"Scripts run by text and by digest, and receive their keys and arguments byte for byte.",
		"If a key or an owner token is changed on the way, the script locks or releases somebody else's lock.",
		scriptsRoundTrip,
	},
	{
		"LargeValues",
		"A value of 1 MiB passes in both directions.",
		"Keys may have 64 KiB, and a batch may have many of them: a truncated key locks something else.",
		largeValues,
	},
	{
		"Concurrent",
		"Concurrent calls receive the replies to their own commands.",
		"With the reply to another caller's command, a caller believes that it has that caller's lock.",
		concurrent,
	},
	{
		"UnreachableIsNotSent",
		"If no connection can be made, the error matches ErrNotSent.",
		"Otherwise every attempt while the server is down starts a clean-up that is retried in vain.",
		unreachableIsNotSent,
	},
	{
		"NotSentIsCertain",
		"An error matches ErrNotSent only if no command reached the server.",
		"The library does not clean up what was not sent: if a command was sent after all, its lock stays for a " +
			"whole TTL.",
		notSentIsCertain,
	},
	{
		"AtMostOnce",
		"The driver sends a command once: if its reply is lost, the driver returns an error and does not send the " +
			"command again.",
		"A repeated command reports the effect of its own first execution: the lock seems to be held by another " +
			"owner, or not to be held.",
		atMostOnce,
	},
	{
		"DeadlineBounds",
		"Do returns an error when the deadline of its context passes without an answer.",
		"Otherwise one silent connection would block its callers, and the callers behind them, for ever.",
		deadlineBounds,
	},
	{
		"DeadlineWithoutDone",
		"If a drivers.Direct promises it, Do returns an error at the deadline of a context that has no Done " +
			"channel.",
		"Callers without cancellation wait inside Do: if Do does not return, they hang.",
		deadlineWithoutDone,
	},
	{
		"LateRepliesAreNobodys",
		"A reply that arrives after its call has ended goes to no other call.",
		"With the late reply that another lock was granted, a caller believes that it has its own.",
		lateRepliesAreNobodys,
	},
	{
		"EndedContextSendsNothing",
		"If the context has ended, Do sends nothing and its error matches ErrNotSent.",
		"A request for a caller who has gone away sets a lock that has no holder.",
		endedContextSendsNothing,
	},
	{
		"OpensWhileDown",
		"A driver can be opened while the server is down: its calls match ErrNotSent until the server is up, and " +
			"succeed afterwards.",
		"One node that is down must not keep a program from starting.",
		opensWhileDown,
	},
	{
		"RecoversAfterOutage",
		"A driver that has lost its connections works again when the server is back.",
		"Otherwise every program would have to restart after each restart of the server.",
		recoversAfterOutage,
	},
	{
		"LeavesAReplica",
		"After a reply READONLY, alone or within a batch, the driver leaves its connections, unless it is a " +
			"drivers.Cluster.",
		"If the roles of two servers change and no connection is closed, the program would be refused for ever, " +
			"although its address leads to the new master.",
		leavesAReplica,
	},
	{
		"CloseIsIdempotentAndFinal",
		"Close can be called twice; afterwards Do sends nothing and its error matches ErrNotSent.",
		"A command that is sent after Close sets a lock that nobody will release.",
		closeIsIdempotentAndFinal,
	},

	// Properties of a driver that implements drivers.Subscriber.
	{
		"MessagesArrive",
		"Messages on the subscribed channels arrive in order and byte for byte, and no other messages arrive.",
		"A waiter that misses its message acquires the lock late and delays the waiters behind it.",
		messagesArrive,
	},
	{
		"ConfirmedMeansDelivered",
		"The driver calls Subscribed when the server has confirmed a channel, and every message that is published " +
			"on it from then on arrives.",
		"After that call waiters check the lock once more and then rely on messages: a lost message costs seconds.",
		confirmedMeansDelivered,
	},
	{
		"UnsubscribeStops",
		"Unsubscribe ends the messages of its channels and of no others, and takes effect in the order of the " +
			"calls.",
		"Waiters come and go: if their channels stay subscribed, the number of channels grows without bound.",
		unsubscribeStops,
	},
	{
		"LostWhenTheConnectionDies",
		"When its connection fails, a subscription ends with one call of Lost and does not reconnect.",
		"Messages may have been lost by then: waiters check the lock again only if they are notified.",
		lostWhenTheConnectionDies,
	},
	{
		"SubscribeKeepsToTheContext",
		"The context limits the opening of a subscription, even if the server never answers, and nothing after " +
			"that.",
		"Otherwise a hung server would block waiters for ever, and the end of one waiter's context would end a " +
			"subscription that others share.",
		subscribeKeepsToTheContext,
	},
	{
		"CloseEndsTheSubscription",
		"Close of the subscription, or of its driver, returns soon, and after the last call of the listener, which " +
			"is Lost.",
		"A listener that is called after Close uses state that its owner has discarded, and a goroutine that stays " +
			"is a leak.",
		closeEndsTheSubscription,
	},
	{
		"SubscriptionDoesNotBlockCommands",
		"Subscriptions leave the connections for commands available.",
		"Otherwise holders could not renew their locks while others wait.",
		subscriptionDoesNotBlockCommands,
	},
	{
		"SubscriptionRefused",
		"If the server refuses the connection, Subscribe returns the refusal as a ServerError.",
		"If the refusal is reported as a lost connection, the library subscribes again for ever, instead of polling " +
			"and reporting the cause.",
		subscriptionRefused,
	},
}

const (
	// hangLimit is the time limit of a call that should succeed.
	hangLimit = 10 * time.Second
	// slack is how long after its deadline a call may return on a busy machine.
	slack = 2 * time.Second
)

// recovery is how long a driver may take to work again after an outage. The tests of this package reduce it, because
// they wait for drivers that never recover.
var recovery = 15 * time.Second

func openDriver(t testing.TB, h DriverHarness, addr string) drivers.Driver {
	t.Helper()
	return closeAtEnd(t, h.Open(t, addr))
}

func closeAtEnd(t testing.TB, d drivers.Driver) drivers.Driver {
	t.Helper()
	if d == nil {
		t.Fatal("conformance: the harness gave no driver")
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: expected no error, seen %v", err)
		}
	})
	return d
}

// newKey returns an unused key. d, a driver that reaches the server, deletes it at the end of the test. The braces put
// all keys into one slot of a cluster.
func newKey(t testing.TB, d drivers.Driver) string {
	key := "conformance:{}:" + rand.Text()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hangLimit)
		defer cancel()
		_, _ = d.Do(ctx, drivers.Command{"DEL", key})
	})
	return key
}

// attempt calls Do with a deadline, and fails the check if Do does not return soon after it.
func attempt(t testing.TB, d drivers.Driver, timeout time.Duration, cmds ...drivers.Command) ([]drivers.Reply, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return call(ctx, t, d, timeout+slack, cmds...)
}

// call calls Do, and fails the check if Do has not returned after limit. Do then continues in its goroutine.
func call(ctx context.Context, t testing.TB, d drivers.Driver, limit time.Duration,
	cmds ...drivers.Command) ([]drivers.Reply, error) {
	t.Helper()
	type result struct {
		replies []drivers.Reply
		err     error
	}
	done := make(chan result, 1)
	go func() {
		replies, err := d.Do(ctx, cmds...)
		done <- result{replies, err}
	}()
	select {
	case r := <-done:
		if r.err == nil && len(r.replies) != len(cmds) {
			t.Fatalf("%s: expected %d replies, seen %d", name(cmds), len(cmds), len(r.replies))
		}
		return r.replies, r.err
	case <-time.After(limit):
		t.Fatalf("%s: expected Do to return, seen nothing for %v", name(cmds), limit)
		return nil, nil
	}
}

// must is attempt for calls that should succeed.
func must(t testing.TB, d drivers.Driver, cmds ...drivers.Command) []drivers.Reply {
	t.Helper()
	replies, err := attempt(t, d, hangLimit, cmds...)
	if err != nil {
		t.Fatalf("%s: expected no error, seen %v", name(cmds), err)
	}
	return replies
}

// eventually calls Do until it succeeds. Each attempt may take as long as all attempts before it together, and a second
// at least. The first limits are short for drivers that need several attempts after an outage. With a fixed limit, a
// busy machine that is always a little too slow for a new connection would lose the progress of every attempt.
func eventually(t testing.TB, d drivers.Driver, cmd drivers.Command) {
	t.Helper()
	var err error
	for start := time.Now(); time.Since(start) < recovery; time.Sleep(10 * time.Millisecond) {
		if _, err = attempt(t, d, max(time.Second, time.Since(start)), cmd); err == nil {
			return
		}
	}
	t.Fatalf("%s: expected success within %v, seen %v", name([]drivers.Command{cmd}), recovery, err)
}

func expect(t testing.TB, what string, want, seen drivers.Reply) {
	t.Helper()
	if !reflect.DeepEqual(want, seen) {
		t.Errorf("%s: expected %s, seen %s", what, show(want), show(seen))
	}
}

func expectNotSent(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: expected an error that matches ErrNotSent, seen none", what)
	} else if !errors.Is(err, drivers.ErrNotSent) {
		t.Errorf("%s: expected an error that matches ErrNotSent, seen %q, which does not", what, err)
	}
}

func show(v drivers.Reply) string {
	text := fmt.Sprintf("%#v", v)
	if len(text) > 300 {
		text = fmt.Sprintf("%s... (%d bytes)", text[:300], len(text))
	}
	return text
}

func name(cmds []drivers.Command) string {
	if len(cmds) == 1 {
		return cmds[0][0]
	}
	return fmt.Sprintf("batch of %d from %s", len(cmds), cmds[0][0])
}

// binary is a value that a client would damage if it treated strings as text or lines.
const binary = "\x00\r\n$5\r\n\xff\xfe+OK\r\n'\""

func replyTypes(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	number, text, absent := newKey(t, d), newKey(t, d), newKey(t, d)
	cases := []struct {
		what string
		cmd  drivers.Command
		want drivers.Reply
	}{
		{"a status", drivers.Command{"SET", number, "9223372036854775806"}, "OK"},
		{"another status", drivers.Command{"PING"}, "PONG"},
		{"the largest integer", drivers.Command{"INCR", number}, int64(math.MaxInt64)},
		{"a digit string", drivers.Command{"GET", number}, "9223372036854775807"},
		{"a negative integer", drivers.Command{"EVAL", "return -1", "0"}, int64(-1)},
		{"nothing deleted", drivers.Command{"DEL", absent}, int64(0)},
		{"an empty string stored", drivers.Command{"SET", text, ""}, "OK"},
		{"an empty string", drivers.Command{"GET", text}, ""},
		{"bytes stored", drivers.Command{"SET", text, binary}, "OK"},
		{"bytes", drivers.Command{"GET", text}, binary},
		{"bytes in a key", drivers.Command{"EXISTS", text + binary}, int64(0)},
		{"a nil string", drivers.Command{"GET", absent}, nil},
		{"a nil array", drivers.Command{"XREAD", "COUNT", "1", "STREAMS", absent, "0"}, nil},
		{"an empty array", drivers.Command{"EVAL", "return {}", "0"}, []drivers.Reply{}},
		{"an array of strings with a nil", drivers.Command{"MGET", text, absent}, []drivers.Reply{binary, nil}},
		{
			"a nested array",
			drivers.Command{"EVAL", "return {1, 'a', {2, '', {}, ARGV[1]}, false, -3}", "0", binary},
			[]drivers.Reply{int64(1), "a", []drivers.Reply{int64(2), "", []drivers.Reply{}, binary}, nil, int64(-3)},
		},
		{
			"a status and an error in an array",
			drivers.Command{"EVAL", "return {redis.status_reply('FINE'), redis.error_reply('MINE own prose'), 'end'}",
				"0"},
			[]drivers.Reply{"FINE", drivers.ServerError("MINE own prose"), "end"},
		},
	}
	batch := make([]drivers.Command, len(cases))
	for i, c := range cases {
		batch[i] = c.cmd
		expect(t, c.what, c.want, must(t, d, c.cmd)[0])
	}
	for i, reply := range must(t, d, batch...) {
		expect(t, cases[i].what+", in a batch", cases[i].want, reply)
	}
}

func serverErrorIsReply(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	key := newKey(t, d)
	must(t, d, drivers.Command{"SET", key, "a string"})
	for _, c := range []struct {
		what string
		cmd  drivers.Command
		want string // the whole text, or with a final "*" its beginning
	}{
		{"an unknown command", drivers.Command{"CONFORMANCE"}, "ERR unknown command*"},
		{"a wrong number of arguments", drivers.Command{"GET"}, "ERR wrong number of arguments*"},
		{"a text that begins like a code", drivers.Command{"EXEC"}, "ERR EXEC without MULTI"},
		{"a wrong type", drivers.Command{"LPUSH", key, "element"}, "WRONGTYPE *"},
		{"an unknown script", drivers.Command{"EVALSHA", strings.Repeat("0", 40), "0"}, "NOSCRIPT *"},
		{"an error that a script returns", drivers.Command{"EVAL", "return redis.error_reply('MINE own  prose')", "0"},
			"MINE own  prose"},
		{"an error that a script does not handle",
			drivers.Command{"EVAL", "return redis.call('LPUSH', KEYS[1], 1)", "1", key}, "WRONGTYPE *"},
	} {
		reply := must(t, d, c.cmd)[0]
		seen, ok := reply.(drivers.ServerError)
		prefix, open := strings.CutSuffix(c.want, "*")
		begins := strings.HasPrefix(string(seen), prefix) || seen.Code()+" " == prefix // see ServerError.Error
		if !ok || string(seen) != c.want && !(open && begins) {
			t.Errorf("%s: expected ServerError %q, seen %s", c.what, c.want, show(reply))
		}
	}
}

func refusedConnectionIsReply(t testing.TB, h DriverHarness) {
	if h.Refused == nil {
		t.Skip("the harness has no Refused")
	}
	d := closeAtEnd(t, h.Refused(t))
	for _, cmds := range [][]drivers.Command{{{"PING"}}, {{"PING"}, {"ECHO", "a"}, {"PING"}}, {{"PING"}}} {
		for i, reply := range must(t, d, cmds...) {
			if _, ok := reply.(drivers.ServerError); !ok {
				t.Errorf("command %d of %d: expected a ServerError, seen %s", i+1, len(cmds), show(reply))
			}
		}
	}
}

func batchOrder(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	cmds := make([]drivers.Command, 100)
	for i := range cmds {
		cmds[i] = drivers.Command{"ECHO", fmt.Sprint("number ", i)}
	}
	for _, n := range []int{1, 2, len(cmds)} {
		for i, reply := range must(t, d, cmds[:n]...) {
			expect(t, fmt.Sprintf("command %d of %d", i, n), cmds[i][1], reply)
		}
	}
}

func batchKeepsRepliesAroundErrors(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	key := newKey(t, d)
	must(t, d, drivers.Command{"SET", key, "value"})
	good := []drivers.Command{{"ECHO", "first"}, {"GET", key}, {"EXISTS", key}}
	want := []drivers.Reply{"first", "value", int64(1)}
	for place := range len(good) + 1 {
		replies := must(t, d, slices.Insert(slices.Clone(good), place, drivers.Command{"LPUSH", key, "element"})...)
		if e, ok := replies[place].(drivers.ServerError); !ok || e.Code() != "WRONGTYPE" {
			t.Errorf("refused command at %d: expected ServerError \"WRONGTYPE ...\", seen %s", place,
				show(replies[place]))
		}
		expect(t, fmt.Sprintf("replies around the refused command at %d", place), want,
			slices.Delete(replies, place, place+1))
	}
}

func commandsStayTheCallers(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	key := newKey(t, d)
	cmds := []drivers.Command{{"set", key, "value"}, {"eval", "return KEYS[1]", "1", key}, {"get", key}}
	want := fmt.Sprintf("%q", cmds)
	must(t, d, cmds...)
	must(t, d, cmds[1])
	if seen := fmt.Sprintf("%q", cmds); seen != want {
		t.Errorf("commands after Do: expected %s, seen %s", want, seen)
	}
}

func scriptsRoundTrip(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	const script = "return {KEYS[1], KEYS[2], #ARGV, ARGV[1], ARGV[2], ARGV[3]}"
	a, b := newKey(t, d), newKey(t, d)
	digest, ok := must(t, d, drivers.Command{"SCRIPT", "LOAD", script})[0].(string)
	if !ok || len(digest) != 40 {
		t.Fatalf("SCRIPT LOAD: expected a digest, seen %s", show(digest))
	}
	want := []drivers.Reply{a, b, int64(3), "", binary, "3"}
	arguments := []string{"2", a, b, "", binary, "3"}
	byDigest := append(drivers.Command{"EVALSHA", digest}, arguments...)
	byText := append(drivers.Command{"EVAL", script}, arguments...)
	expect(t, "EVALSHA", want, must(t, d, byDigest)[0])
	expect(t, "EVAL", want, must(t, d, byText)[0])
	expect(t, "both in a batch", []drivers.Reply{want, want}, must(t, d, byDigest, byText))
	expect(t, "a script without keys", "x", must(t, d, drivers.Command{"EVAL", "return ARGV[1]", "0", "x"})[0])
}

func largeValues(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	key := newKey(t, d)
	value := strings.Repeat("0123456789abcde\n", 1<<16)
	expect(t, "SET", "OK", must(t, d, drivers.Command{"SET", key, value})[0])
	expect(t, "GET", value, must(t, d, drivers.Command{"GET", key})[0])
	expect(t, "a batch", []drivers.Reply{value, "OK", value + "end", value}, must(t, d,
		drivers.Command{"ECHO", value}, drivers.Command{"SET", key, value + "end"},
		drivers.Command{"GET", key}, drivers.Command{"ECHO", value}))
}

func concurrent(t testing.TB, h DriverHarness) {
	const callers, rounds = 32, 20
	d := openDriver(t, h, h.Addr(t))
	var wg sync.WaitGroup
	for caller := range callers {
		key := newKey(t, d)
		wg.Go(func() {
			for round := range rounds {
				value := fmt.Sprintf("%d/%d", caller, round)
				cmds := []drivers.Command{{"SET", key, value}, {"GET", key}, {"ECHO", value}}
				want := []drivers.Reply{"OK", value, value}
				if round%2 == 1 { // alone and in batches
					cmds, want = cmds[2:], want[2:]
				}
				replies, err := d.Do(t.Context(), cmds...)
				if err != nil {
					t.Errorf("caller %d, round %d: expected no error, seen %v", caller, round, err)
					return
				}
				expect(t, fmt.Sprintf("caller %d, round %d", caller, round), want, replies)
			}
		})
	}
	wg.Wait()
}

// deadlineOnly is a context with a deadline and without a Done channel.
type deadlineOnly struct {
	context.Context
	end time.Time
}

func (d deadlineOnly) Deadline() (time.Time, bool) { return d.end, true }
func (d deadlineOnly) Done() <-chan struct{}       { return nil }

func (d deadlineOnly) Err() error {
	if time.Now().Before(d.end) {
		return nil
	}
	return context.DeadlineExceeded
}

// deadlineWithoutDone skips a driver that does not implement drivers.Direct, or that never promises to keep such
// deadlines.
func deadlineWithoutDone(t testing.TB, h DriverHarness) {
	d, witness, r := throughRelay(t, h)
	direct, ok := d.(drivers.Direct)
	if !ok {
		return
	}
	var together sync.WaitGroup // a client may behave differently with concurrent calls
	for range 16 {
		together.Go(func() { _, _ = d.Do(context.WithoutCancel(t.Context()), drivers.Command{"PING"}) })
	}
	together.Wait()
	for _, n := range []int{1, 2} {
		eventually(t, d, drivers.Command{"PING"})
		if !direct.Direct() {
			return
		}
		ctx := func(limit time.Duration) context.Context {
			return deadlineOnly{context.WithoutCancel(t.Context()), time.Now().Add(limit)}
		}
		cmds := []drivers.Command{{"INCR", newKey(t, witness)}, {"PING"}}[:n]
		if replies, err := call(ctx(hangLimit), t, d, hangLimit+slack, cmds...); err != nil || replies[0] != int64(1) {
			t.Errorf("%s, answered: expected 1 and no error, seen %s, %v", name(cmds), show(replies), err)
		}
		r.swallowAfter(cmds[0][1])
		if _, err := call(ctx(stall), t, d, stall+slack, cmds...); err == nil {
			t.Errorf("%s on a connection that fell silent: expected an error, seen none", name(cmds))
		}
	}
}
