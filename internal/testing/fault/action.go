package fault

import (
	"sync/atomic"
	"time"
)

// Action is what happens to one request. The zero Action is Pass.
//
// A connection is a stream. If a request or a reply waits, everything behind it waits as well. If one is lost, nothing
// behind it arrives. Otherwise a client would take the next reply for the missing one, which no network causes.
type Action struct {
	kind  kind
	delay time.Duration
	most  int // bytes in a piece, of trickle
}

type kind int

const (
	pass kind = iota
	drop
	hold
	holdReply
	dropReply
	cutBefore
	cutAfter
	cutMid
	delayReply
	duplicate
	trickle
)

// The actions; see also [Delay], [DelayReply] and [Trickle].
var (
	// Pass forwards the request and delivers its reply.
	Pass = Action{kind: pass}
	// Drop loses the request and all requests behind it on the same connection. The connection stays open and silent,
	// as in a network that loses packets. Replies to earlier requests are still delivered.
	Drop = Action{kind: drop}
	// Hold keeps the request until [Proxy.Release] and then treats it like Pass. The request is executed then even if its
	// client has left meanwhile, like a command that arrives late.
	Hold = Action{kind: hold}
	// HoldReply lets the request execute and keeps the reply until [Proxy.Release].
	HoldReply = Action{kind: holdReply}
	// DropReply lets the request execute and loses its reply and all replies behind it. The connection stays open, and
	// requests behind this one are executed, too.
	DropReply = Action{kind: dropReply}
	// CutBefore closes the client's connection. The request is never executed.
	CutBefore = Action{kind: cutBefore}
	// CutAfter lets the request execute and then closes the client's connection instead of delivering the reply.
	// Requests behind this one are not executed.
	CutAfter = Action{kind: cutAfter}
	// CutMid lets the request execute, delivers the first half of the reply and then closes the client's connection.
	// Requests behind this one may or may not be executed.
	CutMid = Action{kind: cutMid}
	// Duplicate lets the request execute twice and delivers the first reply. The second execution begins after the first
	// reply, on a connection of its own. That connection repeats the client's HELLO, AUTH and SELECT, but has no other
	// state of the client's connection, such as MULTI or subscriptions.
	Duplicate = Action{kind: duplicate}
)

// Delay waits for d and then treats the request like Pass.
func Delay(d time.Duration) Action { return Action{delay: d} }

// DelayReply lets the request execute at once and keeps the reply for d, like a network that is slow in one direction.
func DelayReply(d time.Duration) Action { return Action{kind: delayReply, delay: d} }

// Trickle passes the request and its reply on in pieces of 1 to most bytes, with a pause after each piece. It simulates
// a network that splits messages or has little bandwidth. Messages and pushes are not split.
func Trickle(most int, pause time.Duration) Action {
	return Action{kind: trickle, delay: pause, most: most}
}

// Nth returns a handler that applies action to the n-th request, counted from 1, among those with one of the given
// command names, and passes all others. Without names every request counts. A loop that increases n until nothing fails
// any more tries every fault. One handler may serve several proxies. It then counts the requests of all of them.
func Nth(n int, action Action, names ...string) func(Request) Action {
	var count atomic.Int64
	return func(r Request) Action {
		if (len(names) == 0 || r.Is(names...)) && count.Add(1) == int64(n) {
			return action
		}
		return Pass
	}
}

// Named returns a predicate that holds for requests with one of the given command names, in any case.
func Named(names ...string) func(Request) bool {
	return func(r Request) bool { return r.Is(names...) }
}
