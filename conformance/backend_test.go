package conformance

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/short"
)

// instead makes a function that answers one kind of error for another.
func instead(of error, answer error) func(error) error {
	return func(err error) error {
		if errors.Is(err, of) {
			return answer
		}
		return err
	}
}

// backendSuite is what RunBackend checks.
var backendSuite = slices.Concat(oneLock, manyProperties, manyBackendProperties)

// oneLock are the properties of one lock. Flaws of one lock break those of several locks, too.
var oneLock = slices.Concat(lockerProperties, backendProperties)

var backendFlaws = []flaw{
	{name: "none"},
	{name: "none, and it queues", role: queuer},
	{name: "none, and it notifies", role: notifier},

	{name: "does not exclude", fails: []string{"MutualExclusion", "TryLockHeld", "TTLIsKept"}, broad: true,
		store: func(s *toy) { s.grantsAll = true }},
	{name: "checks that the lock is free, then takes it in a second step", fails: []string{"MutualExclusion"},
		store: func(s *toy) { s.checksThenSets = true }},
	{name: "held is a fault", fails: []string{"TryLockHeld", "ContextEndsWaiting"}, broad: true,
		store: func(s *toy) { s.acquireErr = instead(locker.ErrHeld, refused) }},
	{name: "a wild remaining time", fails: []string{"TryLockHeld"}, store: func(s *toy) { s.wildRemaining = true }},
	{name: "takes its own lock for another's", fails: []string{"AcquireTwiceIsGrantedTwice"},
		store: func(s *toy) { s.forgetsOwner = true }},
	{name: "remembers for a while that it is held", fails: []string{"UnlockFrees"},
		store: func(s *toy) { s.remembersHeld = true }},
	{name: "release does not free", fails: []string{"UnlockFrees"}, broad: true,
		store: func(s *toy) { s.neverFrees = true }},
	{name: "cannot take odd keys", fails: []string{"KeysAreIndependent"},
		store: func(s *toy) { s.refusesOddKeys = true }},
	{name: "leaves something of each lock", fails: []string{"NothingIsLeft", "LeavingWaiterStallsNobody"},
		store: func(s *toy) { s.leavesHusks = true }},
	{name: "leaves something of each lock that was kept", fails: []string{"NothingIsLeft"},
		store: func(s *toy) { s.leavesKept = true }},
	{name: "the counter has seven bits", fails: []string{"FenceGrows"}, store: func(s *toy) { s.fenceWraps = true }},
	{name: "an attempt that is undone gives a token back", fails: []string{"FenceIsUnique"},
		store: func(s *toy) { s.fenceGivenBack = true }},
	{name: "the counter is in memory", fails: []string{"FenceSurvivesRestart"},
		store: func(s *toy) { s.fenceInMemory = true }},
	{name: "tokens start anew",
		fails: []string{"FenceGrows", "FenceOutlivesTheLock", "FenceIsUnique", "FenceSurvivesRestart",
			"AcquireTwiceIsGrantedTwice"}, store: func(s *toy) { s.forgetsFence = true }},
	{name: "declares no tokens but has them", fails: []string{"FenceGrows"},
		change: func(h *Harness) { h.Unfenced = true }},
	{name: "the counter expires with the lock", fails: []string{"FenceOutlivesTheLock"},
		store: func(s *toy) { s.fenceExpires = true }},

	{name: "milliseconds are cut off", fails: []string{"TTLIsKept"}, store: func(s *toy) {
		s.ttl = func(d time.Duration) time.Duration { return d.Truncate(time.Millisecond) - 200*time.Microsecond }
	}},
	{name: "expired locks are in the way until they are swept", fails: []string{"ExpiryFrees"},
		store: func(s *toy) { s.sweeps = true }},
	{name: "sets no expiry", fails: []string{"ExpiryFrees"}, broad: true,
		store: func(s *toy) { s.expiryIgnored = true }},
	{name: "extends by less", fails: []string{"ExtendKeeps", "TTLIsKept", "ExtendTTLKeeps"},
		store: func(s *toy) { s.extendsShort = true }},
	{name: "extend to less than half sets the end", fails: []string{"ExtendNeverShortens"},
		store: func(s *toy) { s.setsEnd = true }},
	{name: "extend creates", fails: []string{"ExtendNeverCreates", "ExtendTellsLoss", "LossIsNoticed"}, broad: true,
		store: func(s *toy) { s.extendCreates = true }},
	{name: "extend creates and says not held", fails: []string{"ExtendNeverCreates", "LossIsNoticed"}, broad: true,
		store: func(s *toy) { s.createsSecretly = true }},
	{name: "extend revives what has expired, and says not held", fails: []string{"ExtendNeverCreates"},
		store: func(s *toy) { s.revivesSecretly = true }},
	{name: "extend calls the end of a TTL a fault", fails: []string{"ExtendTellsLoss"},
		store: func(s *toy) { s.expiredIsFault = true }},
	{name: "extend says nothing of a loss",
		fails: []string{"ExtendTellsLoss", "KeepIsForNobody", "LossIsNoticed", "ForceReleaseTakes"},
		store: func(s *toy) { s.extendErr = instead(locker.ErrNotHeld, nil) }},
	{name: "extend calls a loss a fault", fails: []string{"ExtendTellsLoss", "ForceReleaseTakes"},
		store: func(s *toy) { s.extendErr = instead(locker.ErrNotHeld, locker.ErrUnavailable) }},
	{name: "extend does not compare",
		fails: []string{"EarlierOwnersTouchNothing", "ExtendTellsLoss", "KeepIsForNobody", "LossIsNoticed",
			"LabelIsNotTheOwner", "ForceReleaseTakes"}, store: func(s *toy) { s.extendAny = true }},
	{name: "extend prolongs whatever is there", fails: []string{"EarlierOwnersTouchNothing"},
		store: func(s *toy) { s.prolongsOthers = true }},
	{name: "release says nothing of a loss",
		fails: []string{"UnlockSparesSuccessor", "LossIsNoticed", "ForceReleaseTakes"},
		store: func(s *toy) { s.releaseErr = instead(locker.ErrNotHeld, nil) }},
	{name: "release calls a loss a fault",
		fails: []string{"UnlockSparesSuccessor", "LossIsNoticed", "ForceReleaseTakes"},
		store: func(s *toy) { s.releaseErr = instead(locker.ErrNotHeld, locker.ErrUnavailable) }},
	{name: "release does not compare",
		fails: []string{"UnlockSparesSuccessor", "EarlierOwnersTouchNothing", "KeepIsForNobody", "LossIsNoticed",
			"LabelIsNotTheOwner", "ForceReleaseTakes"}, store: func(s *toy) { s.releaseAny = true }},
	{name: "release deletes the next owner's lock and says not held",
		fails: []string{"UnlockSparesSuccessor", "EarlierOwnersTouchNothing", "LossIsNoticed", "LabelIsNotTheOwner",
			"ForceReleaseTakes"},
		store: func(s *toy) { s.deletesSecretly = true }},
	{name: "release compares, then deletes", fails: []string{"ReleaseIsOneStep"},
		store: func(s *toy) { s.twoSteps = true }},
	{name: "the label is the owner", fails: []string{"LabelIsNotTheOwner"},
		wrapper: locker.Defaults(locker.Label("")), store: func(s *toy) { s.ownsByLabel = true }},
	{name: "keep is forgotten", fails: []string{"KeepIsForNobody", "MinHoldKeeps", "InspectionTells"},
		store: func(s *toy) { s.ignoresKeep = true }},
	{name: "keep is for the owner", fails: []string{"KeepIsForNobody"}, store: func(s *toy) { s.keepsOwner = true }},

	{name: "late attempts are not undone", fails: []string{"CancelledAttemptsLeaveNothing", "HungStoreIsBounded"},
		broad: true, store: func(s *toy) { s.lateIgnored = true }},
	{name: "attempts whose caller has left are not undone", fails: []string{"CancelledAttemptsLeaveNothing"},
		store: func(s *toy) { s.cancelIgnored = true }},
	{name: "sets the expiry in a second step",
		fails: []string{"CancelledAttemptsLeaveNothing", "CancelledAcquireExpires"}, broad: true,
		store: func(s *toy) { s.expiresLater = true }},
	{name: "sets the expiry in a second step, and undoes that until it thinks that it has expired",
		fails: []string{"CancelledAcquireExpires"},
		store: func(s *toy) { s.expiresLater, s.undoesWithinTTL = true, true }},
	{name: "attempts that land after a hang are not undone", fails: []string{"HungStoreIsBounded"},
		store: func(s *toy) { s.hungIgnored = true }},
	{name: "release leaves with its caller", fails: []string{"CancelledReleaseReleases"},
		store: func(s *toy) { s.releaseLeaves = true }},
	{name: "ignores contexts", fails: []string{"ContextEndIsPrompt"}, broad: true,
		store: func(s *toy) { s.ignoresContext = true }},
	{name: "notices contexts a second late", fails: []string{"ContextEndIsPrompt"},
		store: func(s *toy) { s.late = true }},
	{name: "no answer is held", fails: []string{"NoAnswerIsUnavailable", "HungStoreIsBounded"},
		store: func(s *toy) { s.acquireErr = instead(silent, locker.ErrHeld) }},
	{name: "no answer is not held",
		fails: []string{"NoAnswerIsUnavailable", "CancelledReleaseReleases", "HungStoreIsBounded"},
		store: func(s *toy) { s.releaseErr = instead(silent, locker.ErrNotHeld) }},
	{name: "unreachable is held", fails: []string{"NoAnswerIsUnavailable"},
		store: func(s *toy) { s.acquireErr = instead(refused, locker.ErrHeld) }},
	{name: "unreachable is not held", fails: []string{"NoAnswerIsUnavailable"},
		store: func(s *toy) { s.extendErr = instead(refused, locker.ErrNotHeld) }},
	{name: "unreachable is nothing in particular", fails: []string{"NoAnswerIsUnavailable"},
		store: func(s *toy) { s.acquireErr = instead(refused, errors.New("oops")) }},
	{name: "many failures are final", fails: []string{"RecoversAfterOutage"}, store: func(s *toy) { s.breaks = true }},
	{name: "release gives up", fails: []string{"ReleaseGoesOn"}, store: func(s *toy) { s.giveUpRelease = true }},
	{name: "a release that is sent again says not held", fails: []string{"LostReplyIsNoAnswer"},
		store: func(s *toy) { s.retries = true }},
	{name: "a foreign value is a lock", fails: []string{"ForeignKeyIsRefused"},
		store: func(s *toy) { s.foreignHeld = true }},
	{name: "a foreign value is in the way", fails: []string{"ForeignKeyIsRefused"},
		store: func(s *toy) { s.foreignGone = true }},
	{name: "close does nothing", fails: []string{"CloseIsFinal"}, store: func(s *toy) { s.staysOpen = true }},

	{name: "says that it waits and does not", fails: []string{"QueueTellsThatItWaits"}, role: queuer,
		store: func(s *toy) { s.waitingAlways = true }},
	{name: "says twice that it waits", fails: []string{"QueueTellsThatItWaits"}, role: queuer,
		store: func(s *toy) { s.waitingTwice = true }},
	{name: "does not see that a holder has died",
		fails: []string{"ExpiryFrees", "UntilIsConservative", "MinHoldKeeps", "HungStoreIsBounded"}, role: queuer,
		store: func(s *toy) { s.deafToExpiry = true }},
	{name: "the last waiter is served first", fails: []string{"ServedInOrder", "NobodyStarves"}, role: queuer,
		store: func(s *toy) { s.lifo = true }},
	{name: "stops waiting a second late", fails: []string{"ContextEndsWaiting"}, role: queuer,
		store: func(s *toy) { s.queueLate = true }},
	{name: "closing is held", fails: []string{"CloseEndsWaiting"}, role: queuer,
		store: func(s *toy) { s.closingIsHeld = true }},
	{name: "a waiter that has left stays in the queue",
		fails: []string{"LeavingWaiterStallsNobody", "ContextEndsWaiting", "CancelledAttemptsLeaveNothing"},
		broad: true, role: queuer, store: func(s *toy) { s.staysInLine = true }},
	{name: "the TTL counts from the news", fails: []string{"TTLIsKept"}, role: queuer,
		store: func(s *toy) { s.sentLate = true }},
	{name: "relies on messages", fails: []string{"LostMessagesDelay"}, role: queuer,
		store: func(s *toy) { s.trustsNews = true }},

	{name: "notifies nobody", fails: []string{"NotifyTells"}, broad: true, role: notifier,
		store: func(s *toy) { s.neverTells = true }},
	{name: "never reports that its subscription is active", fails: []string{"NotifyTells"}, role: notifier,
		store: func(s *toy) { s.neverLive = true }},
	{name: "notifies after stop", fails: []string{"NotifyStops"}, role: notifier,
		store: func(s *toy) { s.neverStops = true }},
}

// Each flaw is noticed by the listed properties and by no others.
func TestBackendSuiteCatchesFlaws(t *testing.T) {
	t.Parallel()
	for _, f := range short.Part(t, 4, slices.Concat(backendFlaws, lossFlaws, watchFlaws)) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			wantFailures(t, virtually(t, harness(f), oneLock), f.fails, f.broad)
		})
	}
}

// Every property has a flaw that no other property notices.
func TestEveryBackendPropertyHasAFlaw(t *testing.T) {
	eachHasItsOwn(t, backendProperties, alone(slices.Concat(backendFlaws, lossFlaws, watchFlaws)))
}

// A property is skipped, with the reason, if the harness or the backend lacks what it needs.
func TestBackendHooksNotGivenAreSkipped(t *testing.T) {
	h := harness(flaw{})
	store := h.Store
	h.Store = func(t testing.TB) Store {
		s := store(t)
		return Store{Open: func() locker.Backend { return struct{ locker.Backend }{s.Open()} }}
	}
	h.Verifies, h.Steps = false, false
	verdicts := virtually(t, h, backendSuite)
	assert.Empty(t, failures(verdicts))
	for name, why := range map[string]string{
		"ContextEndIsPrompt": "no Hang", "NoAnswerIsUnavailable": "no Hang and no Down",
		"RecoversAfterOutage": "no Down", "ReleaseGoesOn": "no Down",
		"LostReplyIsNoAnswer": "no LoseReply", "CloseIsFinal": "no Close",
		"NotifyTells":           "does not implement locker.Notifier",
		"NotifyLossTells":       "does not implement locker.LossNotifier",
		"QueueTellsThatItWaits": "does not implement locker.Queuer",
		"WatchTells":            "does not implement inspect.Watcher",
		"WatchOutlivesOutages":  "does not implement inspect.Watcher",
		"ManyGrantEach":         "does not implement locker.ManyAcquirer",
	} {
		assert.True(t, verdicts[name].skipped, name)
		assert.Contains(t, verdicts[name].log, why, name)
	}
	h = harness(flaw{role: queuer, change: func(h *Harness) { h.Unfenced = true }})
	for name, v := range virtually(t, h, backendSuite) {
		assert.Equal(t, strings.HasPrefix(name, "Fence") && name != "FenceGrows",
			v.skipped && strings.Contains(v.log, "Unfenced"), name)
	}
}

// In real time the suite uses other limits.
func TestSoundBackendPassesInRealTime(t *testing.T) {
	h := harness(flaw{role: queuer})
	h.Bubble = nil
	RunBackend(t, h)
}

// A store that counts in whole seconds passes.
func TestStoreThatCountsInSeconds(t *testing.T) {
	t.Parallel()
	roles := map[string]role{"asked": plain, "queues": queuer, "notifies": notifier}
	for _, name := range short.Part(t, 1, slices.Sorted(maps.Keys(roles))) {
		r := roles[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness(flaw{role: r, store: func(s *toy) { s.seconds = true }})
			h.MinTTL, h.Granularity = 5*time.Second, time.Second
			assert.Empty(t, failures(virtually(t, h, backendSuite)))
		})
	}
}

func TestTTLOfTheSuite(t *testing.T) {
	for _, tt := range []struct{ least, unit, ttl, want time.Duration }{
		{0, 0, 33 * time.Millisecond, 33 * time.Millisecond},
		{0, time.Second, 33 * time.Millisecond, time.Second},
		{0, time.Second, 2 * time.Second, 2 * time.Second},
		{0, time.Second, 2*time.Second + 1, 3 * time.Second},
		{1500 * time.Millisecond, 0, time.Second, 1500 * time.Millisecond},
		{1500 * time.Millisecond, time.Second, time.Second, 2 * time.Second},
	} {
		assert.Equal(t, tt.want, Harness{MinTTL: tt.least, Granularity: tt.unit}.ttl(tt.ttl), tt)
	}
}
