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
