package conformance

import (
	"testing"
	"time"

	"github.com/golocker/locker"
)

// QuorumHarness describes a locker that keeps its locks on several independent nodes, such as package redlock with a
// custom driver.
//
// It has no MinTTL and no Granularity, unlike [Harness]. The properties of a quorum are about nodes that fail, and ask
// nothing of the time at which a store ends a lock. They use TTLs of at least half a second, which the nodes have to
// support.
type QuorumHarness struct {
	// Store makes three or more empty nodes. It is required. It is called once per property, in the property's bubble
	// if there is one. The suite closes the Lockers; Store registers everything else that has to be closed with
	// t.Cleanup.
	Store func(t testing.TB) QuorumStore

	// Bubble runs each property in virtual time. Set it to testing/synctest.Test for nodes that live in the test's
	// process and do no input or output outside it. If it is nil, the properties run in real time and in parallel, and
	// time limits are generous.
	Bubble func(t *testing.T, f func(t *testing.T))

	// Budget is how long one operation may wait for a majority. 0 means one second, which is redlock.DefaultBudget.
	Budget time.Duration
}

// QuorumStore is a set of nodes that several processes share.
type QuorumStore struct {
	// Client makes a Locker for all nodes. It is required. The Locker must be as independent of the others as one in
	// another process. The suite closes it if locker.As finds an io.Closer.
	Client func() locker.Locker

	// Nodes are the nodes that the Lockers of Client use, in any order.
	Nodes []QuorumNode

	// Duplicate makes a Locker in which the last of Nodes is replaced by the first one, under another name or address,
	// or returns the error that refuses it. The suite closes the Locker like those of Client. If Duplicate is nil, the
	// property DuplicateVotesOnce is skipped.
	Duplicate func() (locker.Locker, error)
}

// QuorumNode is one node. Only Locked is required. The other functions inject faults or observe the node. If one is
// nil, the properties that need it are skipped.
type QuorumNode struct {
	// Name is the node's name in errors. If it is empty, the property ErrorsNameTheNodes is skipped.
	Name string

	// Locked reports whether the node has a lock under key, whoever owns it. It is required. It is called only while
	// the node answers.
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

// RunQuorum checks what a Locker over several nodes promises in addition to the rules of [RunLocker], with one subtest
// per property: it tolerates the failure of any minority of the nodes, grants nothing without a majority, and handles
// nodes that answer late.
func RunQuorum(t *testing.T, h QuorumHarness) {
	if h.Store == nil {
		t.Fatal("conformance: QuorumHarness needs Store")
	}
	run(t, h, h.Bubble, quorumProperties)
}

var quorumProperties = []property[QuorumHarness]{
	{
		"SurvivesAMinority",
		"While any minority of the nodes is down or hangs, clients can acquire, extend and release locks, and the " +
			"locks still exclude each other.",
		"Tolerating failed nodes is the reason to have several nodes.",
		survivesAMinority,
	},
	{
		"SlowNodeDelaysNobody",
		"Lock, Extend and Unlock take as long as a majority of the nodes does, and do not wait for a silent " +
			"minority.",
		"Otherwise one hung machine would slow down every lock of every program.",
		slowNodeDelaysNobody,
	},
	{
		"LateGrantJoins",
		"If a node grants the lock after Lock has returned, it becomes part of the lease: it replaces a node that " +
			"fails later, and it is released.",
		"Otherwise every slightly late answer would reduce the number of failures that the lease survives.",
		lateGrantJoins,
	},
	{
		"RefusesWithoutAMajority",
		"While a majority of the nodes is down or hangs, Lock and TryLock fail within the budget with an error that " +
			"matches ErrNoQuorum and ErrUnavailable, and they succeed again when the majority is back.",
		"A lock that a minority grants can be granted twice; without a time limit, callers hang with the nodes.",
		refusesWithoutAMajority,
	},
	{
		"ErrorsNameTheNodes",
		"If there is no majority, the error names the nodes that did not answer.",
		"Operators have to know which machines to look at.",
		errorsNameTheNodes,
	},
	{
		"RefusalLeavesNothing",
		"An attempt that finds no majority is undone on the nodes that granted it, while the other nodes are still " +
			"unavailable.",
		"Otherwise the leftovers block everybody for a whole TTL when the majority is back.",
		refusalLeavesNothing,
	},
	{
		"SilentNodesAreReleased",
		"A node that did not answer an attempt is released as well, whatever the result of the attempt.",
		"The node may have executed the attempt, or may execute it later: its lock would belong to nobody for a " +
			"whole TTL.",
		silentNodesAreReleased,
	},
	{
		"MajoritiesOverlap",
		"Nobody else acquires a lock that a majority of all nodes has granted, whichever nodes fail later.",
		"A majority of only the nodes that answer is not enough: the other nodes may have granted the lock to " +
			"somebody else.",
		majoritiesOverlap,
	},
	{
		"MinorityExtendsNothing",
		"If Extend reaches only a minority of the nodes, it fails with ErrNoQuorum and leaves Until unchanged.",
		"The lock ends as planned on the majority, and then another client can acquire it.",
		minorityExtendsNothing,
	},
	{
		"LateExtendIsNoValidity",
		"An extension is counted from the time when it was sent, however late the nodes confirm it, and a " +
			"confirmation after the end of the lease does not revive it.",
		"By then another client can have the lock.",
		lateExtendIsNoValidity,
	},
	{
		"MinorityLossKeeps",
		"If a minority of the nodes loses the lock, the lease stays valid and is renewed as before.",
		"Otherwise one machine that lost its data would end every lease.",
		minorityLossKeeps,
	},
	{
		"LeasesHeal",
		"If a node lacks the lock of a lease, because it was unavailable or lost it, later extensions restore the " +
			"lock there until Unlock.",
		"Otherwise every passing fault would leave the lease on fewer nodes, until the failure of a minority ends " +
			"it.",
		leasesHeal,
	},
	{
		"MajorityLossEnds",
		"If a majority of the nodes loses the lock, its lease ends within one TTL and Unlock reports ErrNotHeld.",
		"A holder that does not notice the loss continues to work while another client has the lock.",
		majorityLossEnds,
	},
	{
		"MajorityOutageEnds",
		"While a majority of the nodes is down or hangs, leases end no later than their Until, although they are " +
			"renewed.",
		"Without confirmation the lock ends on the nodes, and when they are back another client can acquire it.",
		majorityOutageEnds,
	},
	{
		"SplitVotesEnd",
		"If contenders start at the same moment, one of them soon acquires the lock, and each of them acquires it " +
			"eventually.",
		"A free lock that nobody can acquire is as bad as one that is never released.",
		splitVotesEnd,
	},
	{
		"CleanupWakesNobody",
		"Undoing a failed attempt on the nodes that granted it does not wake the waiters.",
		"All woken waiters would ask in vain, and would split the votes of the next holder.",
		cleanupWakesNobody,
	},
	{
		"OneCommandPerNode",
		"An uncontended acquisition of a key that was used before costs one command per node, and so does its " +
			"release.",
		"A second round trip doubles the time of every lock.",
		oneCommandPerNode,
	},
	{
		"DuplicateVotesOnce",
		"A node that is configured twice is refused, or has one vote.",
		"If it had two votes, a majority of the votes would not be a majority of the nodes.",
		duplicateVotesOnce,
	},
}
