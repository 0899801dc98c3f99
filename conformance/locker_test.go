package conformance

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/short"
)

var flaws = append([]flaw{
	{name: "none"},
	{name: "does not exclude",
		fails: []string{"MutualExclusion", "TryLockHeld", "WaiterIsServed", "UntilIsConservative"}, broad: true,
		store: func(s *toy) { s.grantsAll = true }},
	{name: "those who wait at the same time share a lease", fails: []string{"MutualExclusion", "FenceGrows"},
		wrapper: func(next locker.Locker) locker.Locker {
			return &sharing{Locker: next,
				flight: map[string]*flight{}}
		}},
	{name: "a wild remaining time", fails: []string{"TryLockHeld"}, wrapper: bad(badLocker{err: func(err error) error {
		if held := (*locker.HeldError)(nil); errors.As(err, &held) && !errors.Is(err, context.Canceled) &&
			!errors.Is(err, context.DeadlineExceeded) {
			return &locker.Error{Op: "lock", Key: "k", Err: &locker.HeldError{Remaining: -time.Second, Label: held.Label}}
		}
		return err
	}})},
	{name: "a lease reports the name of its key on the store", fails: []string{"LeaseDescribesItself"},
		wrapper: bad(badLocker{lease: badLease{prefix: "locks:"}})},
	{name: "remembers for a while that it is held", fails: []string{"UnlockFrees"},
		wrapper: func(next locker.Locker) locker.Locker { return &remembering{Locker: next} }},
	{name: "a waiter is not notified of its own client's release", fails: []string{"WaiterIsServed"},
		wrapper: func(next locker.Locker) locker.Locker { return &selfish{Locker: next} }},
	{name: "expired locks are in the way until they are swept", fails: []string{"ExpiryFrees"},
		store: func(s *toy) { s.sweeps = true }},
	{name: "Done is a second late", fails: []string{"DoneBeforeUntil"},
		wrapper: bad(badLocker{lease: badLease{done: doneLate(time.Second, expired)}})},
	// This delay is within the limits of real time. Only virtual time shows it.
	{name: "Done is a little late", fails: []string{"DoneBeforeUntil"},
		wrapper: bad(badLocker{lease: badLease{done: doneLate(400*time.Millisecond, expired)}})},
	{name: "a loss is reported one and a half TTLs late", fails: []string{"LossIsNoticed"},
		wrapper: bad(badLocker{lease: badLease{done: doneLate(750*time.Millisecond, noticed)}})},
	{name: "unlock of an expired lease says nothing", fails: []string{"UnlockSparesSuccessor"},
		wrapper: bad(badLocker{lease: badLease{unlock: func(l locker.Lease, ctx context.Context) error {
			ended := expired(l)
			if err := l.Unlock(ctx); !ended {
				return err
			}
			return nil
		}}})},
	{name: "does not check whether a context has ended", fails: []string{"EndedContext"},
		wrapper: bad(badLocker{ctx: func(ctx context.Context) context.Context {
			if ctx.Err() != nil {
				return context.WithoutCancel(ctx)
			}
			return ctx
		}})},
	{name: "the error of a cancelled wait does not match ErrHeld", fails: []string{"ContextEndsWaiting"},
		wrapper: bad(badLocker{err: func(err error) error {
			for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
				if errors.Is(err, end) && errors.Is(err, locker.ErrHeld) {
					return &locker.Error{Op: "lock", Key: "k", Err: end}
				}
			}
			return err
		}})},
	{name: "a first attempt goes on without its caller", fails: []string{"CancelledAttemptsLeaveNothing"},
		wrapper: func(next locker.Locker) locker.Locker { return &hasty{next} }},
	{name: "a waiter that has left is served first", fails: []string{"LeavingWaiterStallsNobody"},
		wrapper: func(next locker.Locker) locker.Locker { return &lingering{next} }},
	{name: "MinHold is too short", fails: []string{"MinHoldKeeps"}, store: func(s *toy) { s.keepsShort = true }},
	{name: "leaves something of each lock", fails: []string{"NothingIsLeft", "LeavingWaiterStallsNobody"},
		store: func(s *toy) { s.leavesHusks = true }},
	{name: "leaves something of each lock that was kept", fails: []string{"NothingIsLeft"},
		store: func(s *toy) { s.leavesKept = true }},
	{name: "the counter has seven bits", fails: []string{"FenceGrows"}, store: func(s *toy) { s.fenceWraps = true }},
	{name: "an attempt that is undone gives a token back", fails: []string{"FenceIsUnique"},
		store: func(s *toy) { s.fenceGivenBack = true }},
	{name: "the counter expires with the lock", fails: []string{"FenceOutlivesTheLock"},
		store: func(s *toy) { s.fenceExpires = true }},
	{name: "the counter is in memory", fails: []string{"FenceSurvivesRestart"},
		store: func(s *toy) { s.fenceInMemory = true }},
	{name: "deletes without comparing", fails: []string{"UnlockSparesSuccessor", "LossIsNoticed", "ForceReleaseTakes"},
		store: func(s *toy) { s.releaseAny = true }},
	{name: "unlock does not release", fails: []string{"UnlockFrees", "UnlockIgnoresEndedContext"}, broad: true,
		store: func(s *toy) { s.neverFrees = true }},
	{name: "sets no expiry", fails: []string{"ExpiryFrees"}, broad: true,
		store: func(s *toy) { s.expiryIgnored = true }},
	{name: "expires early", fails: []string{"UntilIsConservative"},
		store: func(s *toy) { s.ttl = func(d time.Duration) time.Duration { return d * 8 / 10 } }},
	{name: "extend shortens", fails: []string{"ExtendKeeps", "RenewalKeeps", "MaxHoldEnds", "ExtendTTLKeeps"},
		store: func(s *toy) { s.shortens = true }},
	{name: "only time ends a lease", fails: []string{"LossIsNoticed"}, wrapper: bad(badLocker{lease: badLease{
		done: unnoticed,
		err: func(l locker.Lease) error {
			if noticed(l) {
				return nil
			}
			return l.Err()
		},
	}})},
	{name: "extend creates", fails: []string{"LossIsNoticed"}, broad: true,
		store: func(s *toy) { s.extendCreates = true }},
	{name: "extend does not compare", fails: []string{"LossIsNoticed", "ForceReleaseTakes"},
		store: func(s *toy) { s.extendAny = true }},
	{name: "tokens start anew",
		fails: []string{"FenceGrows", "FenceIsUnique", "FenceOutlivesTheLock", "FenceSurvivesRestart"},
		store: func(s *toy) { s.forgetsFence = true }},
	{name: "late attempts are not undone", fails: []string{"CancelledAttemptsLeaveNothing"}, broad: true,
		store: func(s *toy) { s.lateIgnored = true }},
	{name: "ignores contexts", fails: []string{"HungStoreIsBounded"},
		store: func(s *toy) { s.ignoresContext = true }},
	{name: "cannot take odd keys", fails: []string{"KeysAreIndependent"},
		store: func(s *toy) { s.refusesOddKeys = true }},
	{name: "faults are called held", fails: []string{"HungStoreIsBounded"},
		store: func(s *toy) { // LabelNamesTheHolder may meet a fault, at the end of a context, and looks at the label
			s.acquireErr = instead(locker.ErrUnavailable, &locker.HeldError{Label: "web-7:4211"})
		}},
	{name: "held is called a fault", fails: []string{"TryLockHeld", "ContextEndsWaiting"}, broad: true,
		store: func(s *toy) { s.acquireErr = func(error) error { return locker.ErrUnavailable } }},
	{name: "not held is called a fault", fails: []string{"UnlockSparesSuccessor", "LossIsNoticed", "ForceReleaseTakes"},
		store: func(s *toy) { s.releaseErr = func(error) error { return locker.ErrUnavailable } }},
	{name: "declares no tokens but has them", fails: []string{"FenceGrows"},
		change: func(h *Harness) { h.Unfenced = true }},

	{name: "the same token every time", fails: []string{"LeaseDescribesItself", "InspectionTells", "ForceReleaseTakes"},
		wrapper: bad(badLocker{lease: badLease{token: "0123456789abcdef"}})},
	{name: "renews a few times only", fails: []string{"RenewalKeeps"}, store: func(s *toy) { s.tires = true }},
	{name: "never renews", fails: []string{"RenewalKeeps", "MaxHoldEnds"},
		wrapper: bad(badLocker{opts: []locker.Option{locker.NoRenewal()}})},
	{name: "hides the context's end",
		fails: []string{"EndedContext", "ContextEndsWaiting", "CancelledAttemptsLeaveNothing", "HungStoreIsBounded",
			"LeavingWaiterStallsNobody"}, wrapper: bad(badLocker{err: func(err error) error {
			if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
				return &locker.Error{Op: "lock", Key: "k", Err: locker.ErrHeld}
			}
			return err
		}})},
	{name: "hides what it waited for", fails: []string{"ContextEndsWaiting", "HungStoreIsBounded"},
		wrapper: bad(badLocker{err: func(err error) error {
			for _, e := range []error{context.Canceled, context.DeadlineExceeded} {
				if errors.Is(err, e) {
					return &locker.Error{Op: "lock", Key: "k", Err: e}
				}
			}
			return err
		}})},
	{name: "waits without a context",
		fails: []string{"EndedContext", "ContextEndsWaiting", "HungStoreIsBounded", "ForceReleaseTakes",
			"LabelNamesTheHolder", "NothingIsLeft"},
		wrapper: bad(badLocker{ctx: func(context.Context) context.Context { return context.Background() }})},
	{name: "unlock gives up with the context", fails: []string{"UnlockIgnoresEndedContext"},
		wrapper: bad(badLocker{lease: badLease{unlock: func(l locker.Lease, ctx context.Context) error {
			if ctx.Err() != nil {
				return &locker.Error{Op: "unlock", Key: "k", Err: ctx.Err()}
			}
			return l.Unlock(ctx)
		}}})},
	{name: "second unlock succeeds", fails: []string{"DoubleUnlock"},
		wrapper: bad(badLocker{lease: badLease{unlock: func(l locker.Lease, ctx context.Context) error {
			if err := l.Unlock(ctx); !errors.Is(err, locker.ErrUnlocked) {
				return err
			}
			return nil
		}}})},
	{name: "until is the end at the store",
		fails: []string{"UntilIsConservative", "LatencyCounts", "ExtendKeeps", "ExtendTTLKeeps"},
		wrapper: bad(badLocker{lease: badLease{until: func(l locker.Lease) time.Time {
			return l.Until().Add(50 * time.Millisecond)
		}}})},
	{name: "loss is not told", fails: []string{"DoneBeforeUntil", "LossIsNoticed"}, broad: true,
		wrapper: bad(badLocker{lease: badLease{
			done: func(locker.Lease) <-chan struct{} { return make(chan struct{}) },
			err:  func(locker.Lease) error { return nil },
		}})},
	{name: "bare errors", fails: []string{"TryLockHeld"}, broad: true,
		wrapper: bad(badLocker{err: func(err error) error {
			if errors.Is(err, locker.ErrHeld) {
				return locker.ErrHeld
			}
			return err
		}})},
	{name: "close waits for the holder", fails: []string{"CloseEndsWaiting"},
		wrapper: bad(badLocker{err: func(err error) error {
			if errors.Is(err, locker.ErrClosed) {
				return &locker.Error{Op: "lock", Key: "k", Err: locker.ErrHeld}
			}
			return err
		}})},
	{name: "until is the TTL", fails: []string{"LeaseDescribesItself"},
		wrapper: bad(badLocker{lease: badLease{until: func(l locker.Lease) time.Time {
			return l.Until().Add(4 * time.Second)
		}}}), broad: true},
	{name: "favours the first clients", fails: []string{"NobodyStarves"}, change: func(h *Harness) {
		store := h.Store
		h.Store = func(t testing.TB) Store {
			s := store(t)
			n := 0
			s.Client = func() locker.Locker {
				if n++; n < crowd {
					return locker.NewClient(s.Open())
				}
				return &lazy{locker.NewClient(s.Open())}
			}
			return s
		}
	}},
	{name: "relies on messages", fails: []string{"LostMessagesDelay"}, role: queuer,
		store: func(s *toy) { s.trustsNews = true }},
	{name: "declares an order but has none", fails: []string{"ServedInOrder"},
		change: func(h *Harness) { h.FIFO = true }},
	{name: "continues to wait when the caller has left",
		fails: []string{"LeavingWaiterStallsNobody", "CancelledAttemptsLeaveNothing"}, broad: true,
		wrapper: func(next locker.Locker) locker.Locker { return &stubborn{next} }},
	{name: "forgets MinHold", fails: []string{"MinHoldKeeps", "InspectionTells"},
		wrapper: bad(badLocker{opts: []locker.Option{locker.MinHold(0)}})},
	{name: "forgets MaxHold", fails: []string{"MaxHoldEnds"},
		wrapper: bad(badLocker{opts: []locker.Option{locker.MaxHold(0)}})},
	{name: "repeats what has failed", fails: []string{"LatencyCounts"}, wrapper: repeats},
	{name: "validity counts from the answer", fails: []string{"LatencyCounts"},
		wrapper: func(next locker.Locker) locker.Locker { return &optimist{next} }},
	{name: "an unlocked lease is lost in the end", fails: []string{"RenewalKeeps"}, wrapper: forgetful},
	{name: "a foreign value is a lock", fails: []string{"ForeignKeyIsRefused"},
		store: func(s *toy) { s.foreignHeld = true }},
	{name: "adjusts bad input", fails: []string{"BadInputIsRefused"}, wrapper: bad(badLocker{adjust: true})},
	{name: "bad input is an outage", fails: []string{"BadInputIsRefused"},
		wrapper: bad(badLocker{err: instead(locker.ErrInvalid, locker.ErrUnavailable)})},
	{name: "an inspection shows the whole token", fails: []string{"InspectionTells"},
		store: func(s *toy) { s.tellsTokens = true }},
	{name: "reports a kept lock as held", fails: []string{"InspectionTells"},
		store: func(s *toy) { s.seesHeldOnly = true }},
	{name: "replaces the label", fails: []string{"LabelNamesTheHolder", "BadInputIsRefused"},
		wrapper: bad(badLocker{opts: []locker.Option{locker.Label("proxy")}})},
	{name: "hides what it knows of the holder", fails: []string{"LabelNamesTheHolder"},
		wrapper: bad(badLocker{err: func(err error) error {
			if held := (*locker.HeldError)(nil); errors.As(err, &held) {
				held.Label = ""
			}
			return err
		}})},
	{name: "makes up a label", fails: []string{"LabelNamesTheHolder"}, store: func(s *toy) { s.invents = true }},
	{name: "extend loses the label", fails: []string{"LabelNamesTheHolder"},
		store: func(s *toy) { s.extendDropsLabel = true }},
	{name: "the label stays with the key", fails: []string{"LabelNamesTheHolder"},
		store: func(s *toy) { s.firstLabelStays = true }},
	{name: "takes from anybody by force", fails: []string{"ForceReleaseTakes"},
		store: func(s *toy) { s.forcesAny = true }},
	{name: "takes nothing by force", fails: []string{"ForceReleaseTakes"},
		store: func(s *toy) { s.forcesNothing = true }},
}, slices.Concat(verifyFlaws, extendFlaws)...)

// Each flaw is noticed by the listed properties and by no others.
func TestLockerSuiteCatchesFlaws(t *testing.T) {
	t.Parallel()
	for _, f := range short.Part(t, 4, flaws) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			wantFailures(t, virtually(t, harness(f), lockerProperties), f.fails, f.broad)
		})
	}
}

// Every property has a flaw that no other property notices.
func TestEveryLockerPropertyHasAFlaw(t *testing.T) {
	eachHasItsOwn(t, lockerProperties, alone(slices.Concat(flaws, backendFlaws)))
}

// A Locker that repeats requests passes if its harness declares Retries.
func TestDeclaredRetriesAreAllowed(t *testing.T) {
	h := harness(flaw{wrapper: repeats})
	h.Retries = true
	verdicts := virtually(t, h, lockerProperties)
	assert.Empty(t, failures(verdicts))
	for name, v := range verdicts {
		assert.Equal(t, name == "LatencyCounts" || name == "ServedInOrder", v.skipped, name)
	}
}

func TestHooksNotGivenAreSkipped(t *testing.T) {
	h := harness(flaw{})
	store := h.Store
	h.Store = func(t testing.TB) Store { return Store{Open: store(t).Open} }
	h.Labels, h.Verifies, h.Steps = false, false, false
	verdicts := virtually(t, h, slices.Concat(lockerProperties, manyProperties))
	assert.Empty(t, failures(verdicts))
	for name, why := range map[string]string{
		"LossIsNoticed": "no Delete", "HungStoreIsBounded": "no Hang", "LatencyCounts": "no Hang",
		"ForeignKeyIsRefused": "no Foreign", "NothingIsLeft": "no Left",
		"FenceSurvivesRestart": "no Restart", "LostMessagesDelay": "no LoseMessages",
		"ServedInOrder": "does not declare FIFO", "LabelNamesTheHolder": "does not declare Labels",
		"ManyLossEnds": "no Delete", "ManyInOneStep": "does not declare Steps",
		"VerifyProves": "does not declare Verifies", "VerifyChangesNothing": "does not declare Verifies",
	} {
		assert.True(t, verdicts[name].skipped, name)
		assert.Contains(t, verdicts[name].log, why, name)
	}
}
