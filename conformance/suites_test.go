package conformance

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/short"
)

// sound are stores without a flaw, in each role.
var sound = []flaw{
	{name: "none"}, {name: "none, and it polls", role: polls}, {name: "none, and it is notified", role: notified},
	{name: "none, and it is told of losses", role: warned}, {name: "none, and it has groups", store: withGroups},
}

// oneLock are the properties of one lock. Flaws of one lock break those of several locks, too.
var oneLock = slices.Concat(lockerProperties, backendProperties)

// backendSuite is what RunBackend checks.
var backendSuite = slices.Concat(oneLock, manyProperties, manyBackendProperties, someProperties,
	groupProperties, kindProperties, exportProperties)

// allSuites are all properties of a store.
var allSuites = slices.Concat(backendSuite, semaphoreProperties, rwlockProperties)

// Each flaw is noticed by the listed properties and by no others.
func TestSuitesCatchFlaws(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		flaws      []flaw
		properties []property[Harness]
	}{
		"none":         {sound, allSuites},
		"of lockers":   {lockerFlaws, lockerProperties},
		"of stores":    {storeFlaws, oneLock},
		"known bugs":   {knownBugs, oneLock},
		"of many keys": {slices.Concat(manyFlaws, someFlaws), backendSuite},
		"of permits":   {semaphoreFlaws, semaphoreProperties},
		"of groups":    {groupFlaws, groupProperties},
		"of kinds":     {kindFlaws, kindProperties},
		"of exports":   {exportFlaws, exportProperties},
		"of readers":   {slices.Concat(rwlockFlaws, inGroups(rwlockFlaws)), rwlockProperties},
	} {
		for _, f := range short.Part(t, 3, tt.flaws) {
			t.Run(what+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				wantFailures(t, virtually(t, harness(f), tt.properties), f.fails, f.broad)
			})
		}
	}
}

// Every property has a flaw that no other property of its suite notices.
func TestEveryPropertyHasAFlaw(t *testing.T) {
	ofLockers := map[string]bool{}
	for _, p := range lockerProperties {
		ofLockers[p.name] = true
	}
	var alone []string
	for _, f := range slices.Concat(
		lockerFlaws, storeFlaws, knownBugs, manyFlaws, someFlaws, groupFlaws, kindFlaws, exportFlaws, semaphoreFlaws,
		rwlockFlaws,
	) {
		seen := slices.DeleteFunc(slices.Clone(f.fails), func(name string) bool { return !ofLockers[name] })
		switch {
		case f.broad:
		case len(f.fails) == 1:
			alone = append(alone, f.fails[0])
		case len(seen) == 1: // RunLocker checks no other property that notices it
			alone = append(alone, seen[0])
		}
	}
	eachHasItsOwn(t, allSuites, alone)
}

// modest is a Backend that states nothing, and can do nothing of it.
type modest struct{ backend.Backend }

func (m modest) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	req.Label, req.Fences = "", 1
	g, err := m.Backend.Acquire(ctx, req)
	g.Fence = 0
	return g, err
}

// A Locker that repeats requests passes if its harness declares Retries.
func TestDeclaredRetriesAreAllowed(t *testing.T) {
	h := harness(flaw{client: repeats})
	h.Retries = true
	verdicts := virtually(t, h, lockerProperties)
	assert.Empty(t, failures(verdicts))
	for name, v := range verdicts {
		assert.Equal(t, name == "LatencyCounts", v.skipped, name)
	}
}

// A property is skipped, with the reason, if the harness or the backend lacks what it needs.
func TestHooksNotGivenAreSkipped(t *testing.T) {
	h := harness(flaw{})
	store := h.Store
	h.Store = func(t testing.TB) Store {
		s := store(t)
		return Store{Open: func() backend.Backend { return modest{s.Open()} }}
	}
	verdicts := virtually(t, h, allSuites)
	assert.Empty(t, failures(verdicts))
	for name, why := range map[string]string{
		"LossIsNoticed": "no Delete", "HungStoreIsBounded": "no Hang", "LatencyCounts": "no Hang",
		"ForeignKeyIsRefused": "no Foreign", "NothingIsLeft": "no Left",
		"FenceSurvivesRestart": "does not state Tokens", "LostMessagesDelay": "no LoseMessages",
		"ServedInOrder": "does not state Order", "CallersShareWithOthers": "does not state Order",
		"ManyLossEnds": "no Delete", "ManyInOneStep": "does not state Many",
		"VerifyProves": "does not state Verify", "VerifyChangesNothing": "does not state Verify",
		"WantedIsTrue":               "does not state TellsWanted or AnswersWanted",
		"PermitsAreWanted":           "does not state TellsWanted or AnswersWanted",
		"ReadersAndWritersAreWanted": "does not state TellsWanted or AnswersWanted",
		"FenceIsUnique":              "does not state Tokens", "FenceOutlivesTheLock": "does not state Tokens",
		"FenceBlocksDoNotOverlap": "does not state Tokens", "TokensOfReadersAndWriters": "does not state Tokens",
		"TokensAreRaised": "does not state Tokens", "RaisingIsOneStep": "does not state Tokens",
		"ContextEndIsPrompt": "no Hang", "NoAnswerIsUnavailable": "no Hang and no Down",
		"RecoversAfterOutage": "no Down", "ReleaseGoesOn": "no Down",
		"LostReplyIsNoAnswer": "no LoseReply", "CloseIsFinal": "no Close",
		"NotifyTells":           "does not implement backend.Notifier",
		"NotifyLossTells":       "does not implement backend.LossNotifier",
		"QueueTellsThatItWaits": "does not implement backend.Queuer",
		"WatchTells":            "does not implement inspect.Watcher",
		"WatchOutlivesOutages":  "does not implement inspect.Watcher",
		"ManyGrantEach":         "does not implement backend.ManyAcquirer",
		"SomeFirstFree":         "does not implement backend.ManyAcquirer",
		"LostPermitIsTold":      "no Delete", "LostPartIsTold": "no Delete",
		"PermitsServedInOrder":       "does not state Order",
		"ReaderPrecedesLaterWriters": "does not state Order",
	} {
		assert.True(t, verdicts[name].skipped, name)
		assert.Contains(t, verdicts[name].log, why, name)
	}
}

// In real time the suite uses other limits.
func TestSoundBackendPassesInRealTime(t *testing.T) {
	h := harness(flaw{})
	h.Bubble = nil
	RunBackend(t, h)
	RunSemaphore(t, h)
	RunRWLock(t, h)
}

// A store that counts in whole seconds, and ends locks late, passes.
func TestStoreThatCountsInSeconds(t *testing.T) {
	t.Parallel()
	roles := map[string]role{"asked": polls, "queues": queues, "notifies": notified}
	for _, name := range short.Part(t, 1, slices.Sorted(maps.Keys(roles))) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness(flaw{role: roles[name], store: func(s *store) {
				const late = 900 * time.Millisecond
				many := s.acquireMany
				s.requests(func(req backend.Request) backend.Request {
					if req.TTL += late; req.Keep > 0 {
						req.Keep += late
					}
					return req
				})
				s.acquireMany = func(ctx context.Context, reqs []backend.Request) ([]*backend.Grant, error) {
					reqs = slices.Clone(reqs)
					for i := range reqs {
						reqs[i].TTL += late
					}
					return many(ctx, reqs)
				}
			}})
			h.MinTTL, h.Granularity = 5*time.Second, time.Second
			assert.Empty(t, failures(virtually(t, h, allSuites)))
		})
	}
}

// A lock that lasts too long is still there for its owner to extend, which is not its recreation.
func TestALockThatLastsTooLongIsNamed(t *testing.T) {
	h := harness(flaw{store: func(s *store) {
		s.requests(func(req backend.Request) backend.Request {
			req.TTL = max(req.TTL, time.Minute)
			return req
		})
	}})
	failed := failures(virtually(t, h, oneLock))
	for _, name := range []string{"ExtendNeverCreates", "ExtendTellsLoss"} {
		assert.Contains(t, failed[name], "it lasts too long, see ExpiryFrees")
	}
	assert.Contains(t, failed, "ExpiryFrees")
}

// idler is a Backend that does something in the background and has no Close.
type idler struct{ backend.Backend }

func newIdler(b backend.Backend) idler {
	go func() { <-make(chan struct{}) }()
	return idler{b}
}

// It runs in another process, because the panic of a bubble ends it.
func TestABackendWithoutCloseIsToldWhatToDo(t *testing.T) {
	const again = "LOCKER_TEST_WITHOUT_CLOSE"
	if os.Getenv(again) != "" {
		h := harness(flaw{role: polls})
		RunBackend(t, Harness{Bubble: synctest.Test, Store: func(t testing.TB) Store {
			s := h.Store(t)
			return Store{Open: func() backend.Backend { return newIdler(s.Open()) }}
		}})
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), again+"=1")
	out, err := cmd.CombinedOutput()
	assert.Error(t, err)
	assert.Contains(t, string(out), "blocked goroutines remain")
	assert.Contains(t, string(out), "a method Close() error that ends them")
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
