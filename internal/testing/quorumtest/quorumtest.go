// Package quorumtest is the way of package redlock's tests to the suite for Lockers over several nodes. The suite is in
// package conformance, whose helpers it needs. It is not exported there, because nobody else has such a Locker: a
// Redlock over any driver is that of package redlock. Bugs that are planted in that package check the suite; see
// internal/testing/mutants.
package quorumtest

import (
	"testing"

	"github.com/golocker/locker"
)

// Run checks what a Locker over several nodes promises in addition to the rules of conformance.RunLocker, with one
// subtest per property: it tolerates the failure of any minority of the nodes, grants nothing without a majority, and
// handles nodes that answer late. Package conformance sets it. Its TTLs are half a second at least.
var Run func(t *testing.T, h Harness)

// Harness says how to make a Locker over several nodes. Its functions are required.
type Harness struct {
	// Store makes three or more empty nodes, once per property, in the property's bubble if there is one. The suite closes
	// the Lockers; Store registers everything else that has to be closed with t.Cleanup.
	Store func(t testing.TB) Store

	// Bubble runs each property in virtual time. If it is nil, the properties run in real time and in parallel, and time
	// limits are generous.
	Bubble func(t *testing.T, f func(t *testing.T))
}

// Store is a set of nodes that several processes share.
type Store struct {
	// Client makes a Locker for all nodes, which is as independent of the others as one in another process. An operation
	// of it waits for a majority for a second at most.
	Client func() locker.Locker

	// Nodes are the nodes that the Lockers of Client use, in any order.
	Nodes []Node
}

// Node is one node.
type Node struct {
	// Name is the node's name in errors.
	Name string

	// Locked reports whether the node has a lock under key, whoever owns it. It is called only while the node answers.
	Locked func(key string) bool

	// Down makes the node unreachable until up is called. Requests fail and are not executed. The node may lose its
	// data during this time.
	Down func() (up func())

	// Hang makes the node stop answering until resume is called. As with a stopped process, the node may execute
	// requests that arrive in between after resume.
	Hang func() (resume func())

	// Delete removes the lock that the node keeps under key, without the knowledge of its holder.
	Delete func(key string)

	// Commands returns how many commands of Lockers the node has executed.
	Commands func() int
}
