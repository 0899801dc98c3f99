package conformance

import (
	"slices"
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
	// patience is the time limit of a call that should succeed.
	patience = 10 * time.Second
	// slack is how long after its deadline a call may return on a busy machine.
	slack = 2 * time.Second
)

// recovery is how long a driver may take to work again after an outage. The tests of this package reduce it, because
// they wait for drivers that never recover.
var recovery = 15 * time.Second
