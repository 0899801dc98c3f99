package conformance

import (
	"testing"
	"time"

	"github.com/golocker/locker"
)

// QuorumHarness says how to build a locker that keeps its locks on several independent nodes, such as package redlock over
// a driver of one's own.
type QuorumHarness struct {
	// Store makes empty nodes: three or more. Required; called once per property, in the property's bubble if there is one.
	// What the Lockers of the store do not close themselves, it closes by t.Cleanup.
	Store func(t testing.TB) QuorumStore

	// Bubble runs each property in virtual time: testing/synctest.Test, for nodes that live in the test's process and speak
	// to nothing outside it. nil: the properties run in real time, in parallel, and bounds are generous.
	Bubble func(t *testing.T, f func(t *testing.T))

	// Budget is how long one operation may wait for a majority. 0: a second, which is redlock.DefaultBudget.
	Budget time.Duration
}

// QuorumStore is a set of nodes, as several processes share them.
type QuorumStore struct {
	// Client makes a Locker over all nodes that is as independent of the others as another process would be. Required. The
	// suite closes it if it has an io.Closer.
	Client func() locker.Locker

	// Nodes are the nodes that Client's Lockers use, in any order.
	Nodes []QuorumNode

	// Duplicate makes a Locker in which the first of Nodes also has the place of the last, under a name or an address of its
	// own, or returns why there can be none. The suite closes it like Client's. nil skips the property that needs it.
	Duplicate func() (locker.Locker, error)
}

// QuorumNode is one node. Only Locked is required; the functions that do to it what operators, networks and machines do skip
// the properties that need them while they are nil.
type QuorumNode struct {
	// Name is what errors call the node. Empty skips the property about that.
	Name string

	// Locked reports whether the node has a lock under key, whoever's. Required. It is asked while the node answers.
	Locked func(key string) bool

	// Down makes the node unreachable until up is called: requests fail, and are not executed. It may have forgotten
	// everything by then.
	Down func() (up func())

	// Hang makes the node stop answering until resume is called; requests made meanwhile may be executed after it, as on a
	// stopped process.
	Hang func() (resume func())

	// Delete removes what the node keeps under key, behind the back of its holder.
	Delete func(key string)

	// Commands returns how many commands of Lockers the node has executed.
	Commands func() int
}

// RunQuorum checks what a Locker over several nodes promises beyond what [RunLocker] checks of any: that a minority of them
// may fail, that a majority may not, and what becomes of nodes that answer late. One subtest per property.
func RunQuorum(t *testing.T, h QuorumHarness) {
	if h.Store == nil {
		t.Fatal("conformance: QuorumHarness needs Store")
	}
	run(t, h, h.Bubble, quorumProperties)
}

var quorumProperties = []property[QuorumHarness]{
	{
		"SurvivesAMinority", "While any minority of the nodes is down or hangs, locks are taken, excluded, extended and released.",
		"That is what several nodes are for; without it they are only as many more that can fail.", survivesAMinority,
	},
	{
		"SlowNodeDelaysNobody", "Nobody waits for a minority that does not answer: Lock, Extend and Unlock take as long as a majority does.",
		"One machine that hangs would slow down every lock of every program.", slowNodeDelaysNobody,
	},
	{
		"LateGrantJoins", "A node that grants when Lock has returned belongs to the lease: it stands in for one that fails later, and is released.",
		"Every answer that is a little late would cost the lease one of the failures it is to survive.", lateGrantJoins,
	},
	{
		"RefusesWithoutAMajority", "While a majority of the nodes is down or hangs, Lock and TryLock fail within the budget with ErrNoQuorum, which matches ErrUnavailable too, and work again when it is back.",
		"Granted by a minority, a lock can be granted twice; without a bound, callers hang with the nodes.", refusesWithoutAMajority,
	},
	{
		"ErrorsNameTheNodes", "The error for want of a majority says which nodes did not answer.",
		"Whoever is woken by it at night has to know which machine to look at.", errorsNameTheNodes,
	},
	{
		"RefusalLeavesNothing", "An attempt that found no majority is undone on the nodes that granted, while the others are still out.",
		"What is left there keeps the lock from everybody for a whole TTL once the majority is back.", refusalLeavesNothing,
	},
	{
		"SilentNodesAreReleased", "A node that did not answer an attempt is released, too, whatever came of the attempt.",
		"It may have executed the attempt, or do so later: a lock for nobody, for a whole TTL.", silentNodesAreReleased,
	},
	{
		"MajoritiesOverlap", "Nobody else gets a lock that a majority has granted, whichever nodes fail later.",
		"A majority of the nodes that happen to answer is none: the other half may have been granted to somebody else.", majoritiesOverlap,
	},
	{
		"MinorityExtendsNothing", "Extend that reaches a minority only fails with ErrNoQuorum, and leaves Until as it was.",
		"The majority's part of the lock ends when it was to end, and then somebody else can have it.", minorityExtendsNothing,
	},
	{
		"LateExtendIsNoValidity", "An extension counts from when it was sent, however late the nodes confirm it; after the lease's end it does not bring it back.",
		"By then somebody else can have the lock.", lateExtendIsNoValidity,
	},
	{
		"MinorityLossKeeps", "A lock that a minority of the nodes has lost is held and renewed as before.",
		"One machine that lost its data would end every lease.", minorityLossKeeps,
	},
	{
		"LeasesHeal", "A node that lacks the lock of a lease, because it was out or has lost it, is given it again by the extensions that follow, until Unlock.",
		"Leases that outlive several faults, one after the other, would have fewer nodes after each, and end by the failure of a minority.", leasesHeal,
	},
	{
		"MajorityLossEnds", "A lock that a majority of the nodes has lost ends its lease within one TTL, and Unlock reports ErrNotHeld.",
		"A holder that is not told works on while somebody else has the lock.", majorityLossEnds,
	},
	{
		"MajorityOutageEnds", "While a majority of the nodes is down or hangs, leases end by their Until although they renew themselves.",
		"What nobody confirms ends on the nodes, and when they are back somebody else can have it.", majorityOutageEnds,
	},
	{
		"SplitVotesEnd", "Contenders that start at the same moment do not keep one another from a majority: one soon has the lock, and each gets it in the end.",
		"A free lock that nobody gets is as bad as one that is never released.", splitVotesEnd,
	},
	{
		"CleanupWakesNobody", "The undoing of an attempt that failed, on nodes that had granted it, does not wake those who wait for the holder.",
		"They would all ask, each in vain, and split the vote of whoever is to have the lock next.", cleanupWakesNobody,
	},
	{
		"OneCommandPerNode", "An acquisition that nobody disputes, of a key that was used before, costs one command per node, and so does its release.",
		"A second round to agree on the token, or a question before the answer, doubles the time of every lock.", oneCommandPerNode,
	},
	{
		"DuplicateVotesOnce", "A node that is given twice is refused, or has one vote.",
		"Were its votes two, a majority of the nodes would not be one.", duplicateVotesOnce,
	},
}
