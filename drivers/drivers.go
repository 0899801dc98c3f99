// Package drivers is the contract between this module and a Redis client.
//
// A [Driver] carries commands to one Redis deployment and brings the replies back. It knows nothing about
// locks: scripts, key names, the EVALSHA fallback, waiting and clean-up all live above it, which is what
// makes a driver small (the three in this repository are each under 150 lines for commands, and under 150 more for
// messages) and exchangeable. Applications do not call a Driver; they hand it to single.New and use the Locker that
// comes back.
//
// To bring a client of your own, implement Driver, run conformance.RunDriver against it, and, if it should be
// reachable from a URL or a configuration file, [Register] it under a name. A driver that can receive published messages
// is a [Subscriber] as well, which spares waiters most of their polling; for that, implement a [Feed] and let
// [Gate.Subscribe] do the rest.
package drivers

import (
	"context"
	"errors"
	"regexp"
	"strings"
)

// Driver sends commands to one Redis server or cluster. All methods may be called from many goroutines at once.
type Driver interface {
	// Do sends cmds in the given order, in one round trip, and returns exactly one reply per command, in that
	// order. len(cmds) is at least 1. The driver must not modify cmds, whose words several calls may share, nor keep them
	// after it returns, except to go on with a call that it has abandoned (see [Await]).
	//
	// The rules, each checked by conformance.RunDriver:
	//
	//   - At most once. A command is never sent a second time, not after a timeout and not after a broken
	//     connection: the caller alone knows whether a repetition is harmless. Switch the client's retries off.
	//   - A refusal is a reply. What the server answers with an error (NOSCRIPT, WRONGTYPE, NOAUTH, …), to
	//     a command or to the connection's own handshake, is a [ServerError] in that command's place, and the
	//     returned error is nil.
	//   - An error is about the batch. A non-nil error says that the outcome of every command is unknown: each
	//     may have been executed, may still be, or may never be. If it is certain that nothing was sent (the
	//     dial failed, no connection was free), the error matches [ErrNotSent]; never otherwise.
	//   - Nil is a reply too: a nil bulk string or nil array is a nil Reply and no error.
	//   - Replies are normalised as described at [Reply], the same for every client.
	//   - The deadline of ctx bounds the call. Cancellation should, too, but a client that cannot be interrupted
	//     may be late: no caller of a Locker waits inside Do with a context of its own that can be cancelled. Contexts of
	//     drivers that are [Direct] may have a deadline and no Done channel.
	//   - Do works, with ErrNotSent, while the server is down, and recovers when it is back: a driver connects
	//     lazily, so that one dead node of several does not stop a program from starting.
	//   - Nothing is logged and no process-wide state of the client library is changed.
	Do(ctx context.Context, cmds ...Command) ([]Reply, error)

	// Close releases what the driver itself opened, subscriptions included; a client handed to a driver's New belongs to
	// whoever made it and stays open. Calls of Do after Close fail with an error that matches ErrNotSent. Closing twice is
	// harmless.
	Close() error
}

// Command is one Redis command: its name, then its arguments, all as raw bytes in strings.
type Command []string

// Reply is what the server answered to one command. Its dynamic type is one of
//
//   - int64: an integer;
//   - string: a simple or bulk string (raw bytes, "OK" for a status);
//   - nil: a nil bulk string or nil array;
//   - []Reply: an array, its elements again these types;
//   - [ServerError]: the server refused the command.
//
// Lock scripts answer with integers, strings and arrays of them only, so the types that RESP2 and RESP3 render
// differently (booleans, doubles, maps) do not occur; a driver may pass them as its client renders them.
type Reply = any

// ServerError is an error reply, verbatim: an upper-case code, usually followed by a space and prose,
// as in "NOSCRIPT No matching script. Please use EVAL.".
type ServerError string

// Error returns the reply as the server sent it, but for an error that a script ran into. A server before Redis 7 puts words
// of its own before that, as in "ERR Error running script (call to f_…): @user_script:1: @user_script: 1: -OOM command not
// allowed …": they are left out, and it is an "ERR" if it has no code.
func (e ServerError) Error() string {
	before := inScript.FindString(string(e))
	text := string(e)[len(before):]
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

// inScript matches what those servers put before an error in a script, without the first words if the script caught and
// returned it.
var inScript = regexp.MustCompile(`^(?:ERR Error running script \(call to f_[0-9a-f]+\): )?(?:@user_script: ?[0-9]+: )+-?`)

// coded matches a text that begins with a code. "The user executing the script can't run this command" does not.
var coded = regexp.MustCompile(`^[A-Z]{2,}(?: |$)`)

// ErrNotSent is matched by errors of [Driver.Do] when it is certain that no command of the batch reached the
// server. Everything else counts as "may have been executed" and costs a clean-up.
var ErrNotSent = errors.New("not sent")

// ErrClosed is what [Driver.Do] and [Subscriber.Subscribe] return after Close, and what ends the subscriptions. It
// matches [ErrNotSent].
var ErrClosed = NotSent(errors.New("driver is closed"))

// NotSent wraps err so that it matches [ErrNotSent] as well as everything err matches. The text stays err's.
func NotSent(err error) error { return notSent{err} }

type notSent struct{ error }

func (e notSent) Unwrap() []error { return []error{ErrNotSent, e.error} }

// Refused returns n replies, all of them e: what a driver answers when the server refused the connection itself
// (wrong password, no such database, too many clients), so that a refusal looks the same wherever it happens.
func Refused(e ServerError, n int) []Reply {
	replies := make([]Reply, n)
	for i := range replies {
		replies[i] = e
	}
	return replies
}
