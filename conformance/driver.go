package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
)

// DriverHarness says how to build the driver under test and where there is a Redis for it.
type DriverHarness struct {
	// Open builds a driver for the server at addr (host:port). Required. It must not fail because the server is down,
	// and must build a new client with each call; the suite closes the driver, the harness whatever the driver does
	// not own (by t.Cleanup). Some addresses are those of relays in the test process, so a TLS driver must not insist
	// on a server name.
	Open func(t testing.TB, addr string) drivers.Driver

	// Addr gives the address (host:port) of a live Redis that the suite may write to. Required; several calls may
	// give the same one. Keys of the suite begin with "conformance:" and are deleted again.
	Addr func(t testing.TB) string

	// Unreachable gives an address at which nobody listens. nil: 127.0.0.1:1.
	Unreachable func(t testing.TB) string

	// Refused builds a driver whose connections the server refuses, say for a wrong password. nil skips
	// RefusedConnectionIsReply and SubscriptionRefused.
	Refused func(t testing.TB) drivers.Driver
}

// RunDriver checks a driver against the rules at [drivers.Driver], one subtest per property, and at
// [drivers.Subscriber] if it is one; else those properties are skipped.
func RunDriver(t *testing.T, h DriverHarness) {
	if h.Open == nil || h.Addr == nil {
		t.Fatal("conformance: DriverHarness needs Open and Addr")
	}
	run(t, h, nil, driverProperties)
}

var driverProperties = []property[DriverHarness]{
	{
		"ReplyTypes", "Integers are int64, strings and statuses string, arrays []Reply, nil is nil; bytes arrive as they are.",
		"Grants are read off these types: in other clothes, one is not seen, or one is seen that was not given.", replyTypes,
	},
	{
		"ServerErrorIsReply", "What the server refuses is a ServerError, verbatim, in the command's place, and the returned error is nil.",
		"NOSCRIPT, READONLY and their like decide what happens next; as an error of Do they say that nobody knows what happened.", serverErrorIsReply,
	},
	{
		"RefusedConnectionIsReply", "A refusal of the connection's own handshake is a ServerError in every command's place.",
		"A wrong password taken for a lost connection is retried and cleaned up for, and never told to the operator.", refusedConnectionIsReply,
	},
	{
		"BatchOrder", "There is one reply per command, in the order of the commands.",
		"Callers share batches: out of order, one gets the lock that was granted to another.", batchOrder,
	},
	{
		"BatchKeepsRepliesAroundErrors", "A refused command of a batch neither stops the others nor hides their replies.",
		"Callers share batches: one caller's refusal must not turn the others' grants into unknown outcomes.", batchKeepsRepliesAroundErrors,
	},
	{
		"CommandsStayTheCallers", "The driver does not modify the commands.",
		"Commands are sent again with their text after NOSCRIPT: a modified one locks something else.", commandsStayTheCallers,
	},
	{
		"ScriptsRoundTrip", "Scripts run by text and by digest, and see their keys and arguments byte for byte.",
		"A key or an owner value that is changed on the way locks, or releases, somebody else's lock.", scriptsRoundTrip,
	},
	{
		"LargeValues", "A value of 1 MiB passes in both directions.",
		"Keys may have 64 KiB, and batches many of them: a cut one locks something else.", largeValues,
	},
	{
		"Concurrent", "Concurrent calls each get the replies to their own commands.",
		"A reply to somebody else's command is a lock granted to the wrong one.", concurrent,
	},
	{
		"UnreachableIsNotSent", "If no connection can be made, the error matches ErrNotSent.",
		"Otherwise every attempt while the server is down costs a clean-up, and a minute of retries for nothing.", unreachableIsNotSent,
	},
	{
		"NotSentIsCertain", "An error matches ErrNotSent only if no command reached the server.",
		"What is not sent is not cleaned up: a lock that was set nevertheless stays for its TTL.", notSentIsCertain,
	},
	{
		"AtMostOnce", "A command is sent once; when its reply is lost, the driver returns an error instead of sending it again.",
		"Repeated behind the caller's back, a command answers about its own first execution: held by another, not held.", atMostOnce,
	},
	{
		"DeadlineBounds", "Do returns, with an error, when the deadline of its context passes without an answer.",
		"One silent connection would keep its callers, and the others behind them, for ever.", deadlineBounds,
	},
	{
		"DeadlineWithoutDone", "Where a drivers.Direct says so, Do returns, with an error, by a deadline whose context has no Done channel.",
		"Callers that cannot be called away wait inside Do: one that does not come back is stuck with the lock that it wanted.", deadlineWithoutDone,
	},
	{
		"EndedContextSendsNothing", "With a context that has ended, nothing is sent and the error matches ErrNotSent.",
		"An attempt for somebody who has left sets a lock that has no holder.", endedContextSendsNothing,
	},
	{
		"OpensWhileDown", "A driver can be built while the server is down, answers ErrNotSent and works when the server is up.",
		"One dead node of several must not keep a program from starting.", opensWhileDown,
	},
	{
		"RecoversAfterOutage", "A driver that lost its connections works again when the server is back.",
		"A server that restarts would be lost to the program until that restarts, too.", recoversAfterOutage,
	},
	{
		"CloseIsIdempotentAndFinal", "Close can be called twice; after it, Do sends nothing and its error matches ErrNotSent.",
		"A command that slips out after Close sets a lock that nobody will release.", closeIsIdempotentAndFinal,
	},

	// Of a driver that is a drivers.Subscriber.
	{
		"MessagesArrive", "What is published on the channels subscribed to arrives in order and byte for byte, and nothing else does.",
		"A waiter that is not told that the lock is its own comes late for it, and those behind it wait.", messagesArrive,
	},
	{
		"ConfirmedMeansDelivered", "Subscribed is called when the server has confirmed a channel, and whatever is published from then on arrives.",
		"Waiters look once more when they are sure to be told, and then rely on it: a message lost after that costs seconds.", confirmedMeansDelivered,
	},
	{
		"UnsubscribeStops", "Unsubscribe ends the messages of its channels and of no others, and takes effect in the order of the calls.",
		"Waiters come and go: channels that are never given up grow without bound.", unsubscribeStops,
	},
	{
		"LostWhenTheConnectionDies", "When its connection fails, a subscription ends with one call of Lost and is not repaired.",
		"Messages were lost meanwhile: whoever waits has to look, and does so only if it is told.", lostWhenTheConnectionDies,
	},
	{
		"SubscribeKeepsToTheContext", "The context bounds the opening of a subscription, against a server that never answers too, and nothing else.",
		"A server that hangs would keep waiters for ever; and one that leaves must not end the others' subscription.", subscribeKeepsToTheContext,
	},
	{
		"CloseEndsTheSubscription", "Close of the subscription or its driver returns soon, after the last call of the listener, which is Lost.",
		"A listener that is called after Close works on what its owner has thrown away, and a goroutine that stays is a leak.", closeEndsTheSubscription,
	},
	{
		"SubscriptionDoesNotBlockCommands", "Subscriptions take no connection away from commands.",
		"Those who hold locks could not renew them while others wait.", subscriptionDoesNotBlockCommands,
	},
	{
		"SubscriptionRefused", "If the server refuses the connection, Subscribe returns the refusal as a ServerError.",
		"A refusal taken for a lost connection is tried again for ever instead of falling back to polling and telling why.", subscriptionRefused,
	},
}

const (
	// patience is the deadline of a call that should succeed.
	patience = 10 * time.Second
	// slack is how late a call may return after its deadline on a busy machine.
	slack = 2 * time.Second
)

// recovery is how long a driver may take to notice that the server is back. A variable, because the tests of this
// package wait for drivers that never do.
var recovery = 15 * time.Second

func openDriver(t testing.TB, h DriverHarness, addr string) drivers.Driver {
	t.Helper()
	return closing(t, h.Open(t, addr))
}

func closing(t testing.TB, d drivers.Driver) drivers.Driver {
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

// newKey returns a key that nobody uses and has d, a driver that reaches the server, delete it in the end. The braces
// put all keys of a cluster in one slot.
func newKey(t testing.TB, d drivers.Driver) string {
	key := "conformance:{}:" + rand.Text()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, _ = d.Do(ctx, drivers.Command{"DEL", key})
	})
	return key
}

// attempt calls Do with a deadline and fails the check if it does not return soon after that.
func attempt(t testing.TB, d drivers.Driver, timeout time.Duration, cmds ...drivers.Command) ([]drivers.Reply, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return call(ctx, t, d, timeout+slack, cmds...)
}

// call fails the check if Do has not returned after limit. It is then left alone in its goroutine.
func call(ctx context.Context, t testing.TB, d drivers.Driver, limit time.Duration, cmds ...drivers.Command) ([]drivers.Reply, error) {
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

// must is attempt for calls that have no reason to fail.
func must(t testing.TB, d drivers.Driver, cmds ...drivers.Command) []drivers.Reply {
	t.Helper()
	replies, err := attempt(t, d, patience, cmds...)
	if err != nil {
		t.Fatalf("%s: expected no error, seen %v", name(cmds), err)
	}
	return replies
}

// eventually calls Do until it succeeds.
func eventually(t testing.TB, d drivers.Driver, cmd drivers.Command) {
	t.Helper()
	var err error
	for end := time.Now().Add(recovery); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err = attempt(t, d, time.Second, cmd); err == nil {
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
