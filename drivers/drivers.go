// Package drivers defines the interface between this module and a Redis client.
//
// A [Driver] sends commands to one Redis deployment and returns the replies. It knows nothing about locks: scripts, key
// names, the EVALSHA fallback, waiting and clean-up are implemented above it. Drivers are therefore small and easy to
// exchange. Applications do not call a Driver. They pass it to single.New or redlock.New and use the resulting Locker.
//
// To support another client, implement Driver and run conformance.RunDriver against it. To make the driver available to
// URLs and configuration files, [Register] it under a name. If the client can receive published messages, also
// implement [Subscriber], so that waiters need not poll: implement a [Feed], and let [Lifecycle.Subscribe] do the rest.
package drivers

import (
	"context"
	"errors"
	"regexp"
	"strings"
)

// Driver sends commands to one Redis server or cluster. All methods may be called concurrently.
type Driver interface {
	// Do sends cmds in the given order, in one round trip, and returns exactly one reply per command, in that order.
	// len(cmds) is at least 1. The driver must not modify cmds, because several calls may share their strings. It must
	// not keep cmds after it returns, except for a call that it has abandoned; see [Await].
	//
	// The rules, each checked by conformance.RunDriver:
	//
	//   - At most once. A command is never sent a second time, neither after a time-out nor after a broken connection.
	//     Only the caller knows whether a repetition is harmless. Switch off the client's retries.
	//   - One connection. All commands of a call are sent on one connection, unless the driver implements [Cluster].
	//     WAIT, which is then the last of them, waits for what was written on its own connection, and blocks it. The
	//     driver therefore uses that connection for no other call meanwhile. Otherwise all of them would wait, too.
	//   - A refusal is a reply. If the server answers a command or the connection's handshake with an error (NOSCRIPT,
	//     WRONGTYPE, NOAUTH, …), the reply to the command is a [ServerError], and the returned error is nil.
	//   - An error concerns the whole batch. It means that the outcome of every command is unknown: each may have been
	//     executed, may be executed later, or may never be executed. The error matches [ErrNotSent] if and only if it
	//     is certain that nothing was sent, for example because the dial failed or no connection was free.
	//   - Nil is a reply. The reply for a nil bulk string or a nil array is nil, and not an error.
	//   - Replies are normalised as described at [Reply]. They are the same for every client.
	//   - The deadline of ctx bounds the call. Cancellation should also end it, but a client that cannot be interrupted
	//     may return late, because callers of a Locker that can be cancelled do not wait inside Do. For drivers that
	//     implement [Direct], ctx may have a deadline without a Done channel.
	//   - While the server is down, Do fails with ErrNotSent. It works again when the server is back. A driver connects
	//     when Do is first called, so that a program can start while one of several nodes is down.
	//   - A replica is left. If a reply says that the server is no master, as READONLY does, later calls use other
	//     connections, because new ones may lead to the master; see [Lifecycle.Stale]. A [Cluster] is redirected.
	//   - The driver logs nothing and changes no process-wide state of the client library.
	Do(ctx context.Context, cmds ...Command) ([]Reply, error)

	// Close closes what the driver itself has opened, including subscriptions. A client that was passed to a driver's
	// New belongs to the caller and stays open. Calls of Do after Close fail with an error that matches ErrNotSent.
	// Closing twice is harmless.
	Close() error
}

// Cluster is an optional interface that may be implemented by a [Driver] that sends commands to several servers, by the
// hash slot of their first key, as a client of a Redis Cluster does. If not, all commands may share batches, so that
// one server that is down makes the locks on all servers fail.
//
// With Cluster, commands are kept apart by groups of sixteen neighbouring slots: commands of different groups share no
// batch, do not wait for each other, and do not fail because of each other. In return there are more concurrent calls
// of Do, up to four for each group in use. All keys of one command have the same slot.
//
// A driver that implements Cluster must not implement [Subscriber]. Waiters poll, unless it implements
// [ShardSubscriber]. A driver that wraps a Cluster must implement Cluster as well.
type Cluster interface {
	Driver

	// Cluster marks the driver. It does nothing and is not called.
	Cluster()
}

// Direct is an optional interface that may be implemented by a [Driver]. If not, Do is always called on another
// goroutine, while the caller waits for the result or for the end of its context. With Direct, a caller whose context
// cannot be cancelled may call Do itself, which saves the goroutine.
type Direct interface {
	// Direct reports whether a call of Do that is made now returns by the deadline of its context, although the context
	// has no Done channel. This is the case if there is a connection, and if reading and writing observe the deadline.
	//
	// The answer may be out of date when Do is called. If Do has to open a connection after all, it may return late,
	// within the client's own time-outs.
	//
	// Direct must not block. It may always return false.
	Direct() bool
}

// Command is one Redis command: its name and its arguments, as strings of raw bytes. Because the locks of many callers
// share calls of a script, a command may have some hundred words.
type Command []string

// Reply is the server's answer to one command. Its dynamic type is one of
//
//   - int64: an integer;
//   - string: a simple or bulk string (raw bytes, "OK" for a status);
//   - nil: a nil bulk string or nil array;
//   - []Reply: an array, its elements again these types;
//   - [ServerError]: the server refused the command.
//
// Lock scripts only return integers, strings and arrays of these. The types that differ between RESP2 and RESP3
// (booleans, doubles, maps) do not occur; a driver may return them as its client represents them.
type Reply = any

// ServerError is the unchanged text of an error reply. It starts with an upper-case code, usually followed by a space
// and a message, as in "NOSCRIPT No matching script. Please use EVAL.".
type ServerError string

// Error returns the reply as the server sent it, with two exceptions. Servers before Redis 7 put a prefix before errors
// in scripts, as in "ERR Error running script (call to f_…): @user_script:1: @user_script: 1: -OOM command not allowed
// …". Error removes the prefix, and puts "ERR" before the rest if that has no code. A server that does not know a
// command repeats its arguments, which may contain a secret. Error removes them.
func (e ServerError) Error() string {
	before := inScript.FindString(string(e))
	text, _, _ := strings.Cut(string(e)[len(before):], ", with args beginning with:")
	if before != "" && !coded.MatchString(text) {
		return "ERR " + text
	}
	return text
}

// Code returns the first word of Error: "NOSCRIPT", "READONLY", "WRONGPASS", "ERR", …
func (e ServerError) Code() string {
	code, _, _ := strings.Cut(e.Error(), " ")
	return code
}

// inScript matches the prefix that servers before Redis 7 put before an error in a script. The first part of the prefix
// is missing if the script caught the error and returned it.
var inScript = regexp.MustCompile(
	`^(?:ERR Error running script \(call to f_[0-9a-f]+\): )?(?:@user_script: ?[0-9]+: )+-?`)

// coded matches a text that begins with a code. It does not match "The user executing the script can't run …".
var coded = regexp.MustCompile(`^[A-Z]{2,}(?: |$)`)

// ErrNotSent is matched by errors of [Driver.Do] if it is certain that no command of the batch has reached the server.
// After any other error, the commands may have been executed, and the caller has to undo them.
var ErrNotSent = errors.New("not sent")

// ErrClosed is returned by [Driver.Do] and [Subscriber.Subscribe] after Close, and passed to the listeners of
// subscriptions that Close ends. It matches [ErrNotSent].
var ErrClosed = NotSent(errors.New("driver is closed"))

// NotSent returns an error that matches [ErrNotSent] and everything that err matches. Its text is that of err.
func NotSent(err error) error { return notSent{err} }

type notSent struct{ error }

func (e notSent) Unwrap() []error { return []error{ErrNotSent, e.error} }

// Refused returns n replies that are all e. It is for a server that refuses the connection itself, because of a wrong
// password, an unknown database or too many clients. Callers then see the refusal in the same way as that of a command.
func Refused(e ServerError, n int) []Reply {
	replies := make([]Reply, n)
	for i := range replies {
		replies[i] = e
	}
	return replies
}

// Outcome returns the result of [Driver.Do] for a client that reports an error for each command of a batch. failures
// are the errors that are not refusals. If there is any, the outcome of the batch is unknown. If every command failed
// and notSent returns true for all failures, nothing was sent. Otherwise the error does not match [ErrNotSent], even if
// that of one command does, such as an error of [Config.Dial] for one of several servers.
func Outcome(replies []Reply, failures []error, notSent func(error) bool) ([]Reply, error) {
	if len(failures) == 0 {
		return replies, nil
	}
	if len(failures) < len(replies) {
		return nil, unknown(failures[0])
	}
	for _, err := range failures {
		if !notSent(err) {
			return nil, unknown(err)
		}
	}
	return nil, NotSent(failures[0])
}

// unknown returns err, or an error that matches the same but ErrNotSent.
func unknown(err error) error {
	if errors.Is(err, ErrNotSent) {
		return maybeSent{err}
	}
	return err
}

// maybeSent has no Unwrap, which would match ErrNotSent.
type maybeSent struct{ err error }

func (e maybeSent) Error() string        { return e.err.Error() }
func (e maybeSent) Is(target error) bool { return target != ErrNotSent && errors.Is(e.err, target) }
func (e maybeSent) As(target any) bool   { return errors.As(e.err, target) }

// Subscriber is an optional interface that may be implemented by a [Driver] whose client can receive published
// messages. If not, waiters poll. Everything else works in the same way.
//
// A driver that implements [Cluster] must not implement Subscriber. The channels of a Subscriber are those of SUBSCRIBE
// and PUBLISH. A Redis Cluster broadcasts these to all of its servers, but a script learns only how many subscribers
// its own server has. Sharded channels (SSUBSCRIBE and SPUBLISH, Redis 7) do not have this problem; see
// [ShardSubscriber].
//
// conformance.RunDriver checks the rules below. [Lifecycle.Subscribe] implements those that do not depend on the
// client.
type Subscriber interface {
	// Subscribe opens a new connection, which does not count against the connections for commands. It returns when the
	// server has answered on that connection, or when it has failed. The end of ctx, by deadline or cancellation, ends
	// the call, but not the subscription. What arrives on the connection is passed to l. If Subscribe fails, l is not
	// called.
	//
	// The subscription ends when it is closed or when the connection fails. It is not re-established, because messages
	// were lost meanwhile; the caller must open another one. The subscription does not end because no messages arrive.
	// To check the connection, publish a message to it.
	//
	// An error is a [ServerError] if the server refused the connection. After the driver's Close, which closes all
	// subscriptions, it matches [ErrClosed].
	Subscribe(ctx context.Context, l Listener) (Subscription, error)
}

// Subscription is one connection that receives published messages. Its methods may be called concurrently. A function
// of a [Listener] must call neither them nor the driver's Close.
type Subscription interface {
	// Subscribe asks the server for the messages of channels. It does not wait for the answer: Listener.Subscribed is
	// called for each channel when the server confirms it. An error, or a refusal by the server, ends the subscription.
	// After the end of the subscription, Subscribe always returns an error.
	Subscribe(channels ...string) error

	// Unsubscribe tells the server to send no more messages of channels. Messages that are already on their way may
	// still arrive.
	Unsubscribe(channels ...string) error

	// Close ends the subscription, whatever the server does. It returns after the last call of the Listener. Closing
	// twice is harmless.
	Close() error
}

// Listener has the functions that are called for what arrives on a [Subscription]. They are called one at a time, in
// the order of the server. All of them must be set. They must not block, because the client's reader may be calling
// them.
type Listener struct {
	// Subscribed is called when the server has confirmed channel. All messages that are published from now on arrive.
	Subscribed func(channel string)

	// Message is called when payload was published on channel.
	Message func(channel, payload string)

	// Lost is called once per Subscription, as the last call, possibly before Subscribe has returned. err is never nil.
	// It matches [ErrClosed] if the subscription or the driver was closed. It is a [ServerError] if the server refused
	// a command. Otherwise it says how the connection failed.
	Lost func(err error)
}

// ShardSubscriber is an optional interface that may be implemented by a [Driver] that is a [Cluster]. If not, waiters
// poll. Everything else works in the same way.
//
// The channels of a ShardSubscriber are those of SSUBSCRIBE and SPUBLISH, which Redis 7 and Valkey have. A channel
// belongs to the hash slot of its name, as a key does. A script that publishes on it learns how many subscribers the
// script's own server has, so a subscriber must be connected to the master that has the slot.
//
// conformance.RunDriver checks the rules below. [Lifecycle.Subscribe] implements those that do not depend on the
// client.
type ShardSubscriber interface {
	// SubscribeShard opens a new connection to the master that has the slot of channel, and subscribes to channel. It
	// returns when the server has confirmed that, or when it has failed. Subscribed of l is called for channel, too. In
	// all else, SubscribeShard and the [Subscription] keep to the rules of [Subscriber.Subscribe]:
	//
	//   - All channels of the Subscription have the slot of channel. The caller sees to that by a {hash tag}.
	//   - If the slot moves to another server, the Subscription ends, as if the connection had failed. Subscriptions to
	//     other slots live on.
	//   - If the server answers that another one has the slot, the driver goes there before SubscribeShard fails.
	//   - Any other refusal is a [ServerError]. Servers before Redis 7 refuse the command.
	SubscribeShard(ctx context.Context, channel string, l Listener) (Subscription, error)
}
