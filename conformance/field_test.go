package conformance

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/short"
)

// constant is a backend in which all owners have the same token, like a program that stores "1", "locked" or its own
// name.
type constant struct{ locker.Backend }

func (c constant) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	req.Token = "locked"
	return c.Backend.Acquire(ctx, req)
}

func (c constant) Extend(ctx context.Context, req locker.Request) error {
	req.Token = "locked"
	return c.Backend.Extend(ctx, req)
}

func (c constant) Release(ctx context.Context, req locker.Request) error {
	req.Token = "locked"
	return c.Backend.Release(ctx, req)
}

// fieldBugs are bugs that lock libraries and hand-made locks have shipped, each in a backend without other faults.
// fails lists the properties that find the bug.
var fieldBugs = []struct {
	name  string
	fails []string // others may notice the bug as well
	role  role
	store func(s *toy)
}{
	{
		name:  "constant owner value",
		fails: []string{"MutualExclusion", "UnlockSparesSuccessor"},
		role:  func(b *toyBackend) locker.Backend { return constant{b} },
	},
	{
		name:  "constant owner value, set if there is none",
		fails: []string{"UnlockSparesSuccessor", "EarlierOwnersTouchNothing"},
		role:  func(b *toyBackend) locker.Backend { return constant{b} },
		store: func(s *toy) { s.forgetsOwner = true },
	},
	{
		name:  "DEL without compare",
		fails: []string{"UnlockSparesSuccessor"},
		store: func(s *toy) { s.releaseAny = true },
	},
	{
		name:  "GET, compare, DEL",
		fails: []string{"ReleaseIsOneStep"}, // a Locker cannot be made to release at the very end of its TTL
		store: func(s *toy) { s.twoSteps = true },
	},
	{
		name:  "SETNX, then EXPIRE",
		fails: []string{"CancelledAcquireExpires", "CancelledAttemptsLeaveNothing"},
		store: func(s *toy) { s.expiresLater = true },
	},
	{
		name:  "no EXPIRE",
		fails: []string{"ExpiryFrees"},
		store: func(s *toy) { s.expiryIgnored = true },
	},
	{
		name:  "errors swallowed as held",
		fails: []string{"NoAnswerIsUnavailable", "HungStoreIsBounded"},
		store: func(s *toy) { s.acquireErr = instead(locker.ErrUnavailable, locker.ErrHeld) },
	},
	{
		name:  "context ignored",
		fails: []string{"ContextEndIsPrompt", "HungStoreIsBounded"},
		store: func(s *toy) { s.ignoresContext = true },
	},
	{
		name:  "no clean-up when the context ends",
		fails: []string{"CancelledAttemptsLeaveNothing", "HungStoreIsBounded"},
		store: func(s *toy) { s.lateIgnored = true },
	},
	{
		name:  "release with the caller's context",
		fails: []string{"CancelledReleaseReleases"}, // a Client never passes an ended context to Release
		store: func(s *toy) { s.releaseLeaves = true },
	},
	{
		name:  "nil reply of SET NX taken for success",
		fails: []string{"MutualExclusion", "TryLockHeld"},
		store: func(s *toy) { s.acquireErr = instead(locker.ErrHeld, nil) },
	},
	{
		name:  "0 of the release script taken for success",
		fails: []string{"UnlockSparesSuccessor"},
		store: func(s *toy) { s.releaseErr = instead(locker.ErrNotHeld, nil) },
	},
	{
		name:  "resend of an acquisition that is not idempotent",
		fails: []string{"AcquireTwiceIsGrantedTwice", "LostReplyIsNoAnswer"}, // a locker cannot be made to send twice
		store: func(s *toy) { s.retries, s.forgetsOwner = true, true },
	},
	{
		name:  "resend of a release that is not idempotent",
		fails: []string{"LostReplyIsNoAnswer"},
		store: func(s *toy) { s.retries = true },
	},
	{
		name:  "a failed call for several locks keeps those that were free",
		fails: []string{"ManyAcquireNothing", "ManyTouchNothing"},
		store: func(s *toy) { s.manyKeeps = true },
	},
	{
		name:  "counter that expires with the lock",
		fails: []string{"FenceOutlivesTheLock"},
		store: func(s *toy) { s.fenceExpires = true },
	},
	{
		name:  "counter that a restart forgets",
		fails: []string{"FenceSurvivesRestart"},
		store: func(s *toy) { s.fenceInMemory = true },
	},
}

func TestKnownBugsAreFound(t *testing.T) {
	for _, bug := range short.Part(t, 2, fieldBugs) {
		t.Run(bug.name, func(t *testing.T) {
			h := harness(flaw{role: bug.role, store: bug.store})
			failed := slices.Collect(maps.Keys(failures(virtually(t, h, backendSuite))))
			assert.Subset(t, failed, bug.fails)
		})
	}
}

// These are the bugs of drivers: defaults of client libraries, and mistakes that are easy to make.
// TestDriverSuiteNotices checks which properties fail for each bug.
func TestKnownDriverBugsAreFound(t *testing.T) {
	for name, want := range map[string]string{
		"a lost reply is asked for again":               "AtMostOnce",
		"a lost reply is made up":                       "AtMostOnce",
		"deadlines are ignored":                         "DeadlineBounds",
		"an ended context is not noticed":               "EndedContextSendsNothing",
		"nil is an error":                               "ReplyTypes",
		"nil is an empty string":                        "ReplyTypes",
		"one refusal is an error":                       "ServerErrorIsReply",
		"a refused handshake is an error":               "RefusedConnectionIsReply",
		"every error claims that nothing was sent":      "NotSentIsCertain",
		"a failed first dial is final":                  "OpensWhileDown",
		"a lost connection is repaired":                 "LostWhenTheConnectionDies",
		"the opening ignores its context":               "SubscribeKeepsToTheContext",
		"a subscription takes the only connection":      "SubscriptionDoesNotBlockCommands",
		"the driver's Close leaves subscriptions alone": "CloseEndsTheSubscription",
	} {
		i := slices.IndexFunc(slices.Concat(bugs, subscriberBugs), func(b bug) bool { return b.name == name })
		if assert.GreaterOrEqual(t, i, 0, "no such bug: %s", name) {
			assert.Contains(t, slices.Concat(bugs, subscriberBugs)[i].fails, want, name)
		}
	}
}
