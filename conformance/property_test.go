package conformance

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

func TestRecordKeepsVerdictsApart(t *testing.T) {
	var order []string
	verdicts := record(t, "harness", []property[string]{
		{"Passes", "rule one", "why one", func(t testing.TB, h string) { t.Logf("saw %s", h) }},
		{"Fails", "rule two", "why two", func(t testing.TB, _ string) { t.Errorf("first"); t.Errorf("second") }},
		{"FailsNow", "rule three", "why three", func(t testing.TB, _ string) {
			t.Cleanup(func() { order = append(order, "outer") })
			t.Cleanup(func() {
				order = append(order, "inner")
				assert.Error(t, t.Context().Err(), "clean-up runs with an ended context")
			})
			t.Fatalf("stop")
			panic("not reached")
		}},
		{"Skips", "rule four", "why four", func(t testing.TB, _ string) { t.Skip("no hook") }},
		{"Panics", "rule five", "why five", func(testing.TB, string) { panic("oops") }},
	})
	assert.Equal(t, map[string]verdict{
		"Passes":   {log: "saw harness"},
		"Fails":    {failed: true, log: "first\nsecond\nthe rule of Fails: rule two\nwhy it matters: why two"},
		"FailsNow": {failed: true, log: "stop\nthe rule of FailsNow: rule three\nwhy it matters: why three"},
		"Skips":    {skipped: true, log: "no hook"},
		"Panics":   {failed: true, log: "panic: oops\nthe rule of Panics: rule five\nwhy it matters: why five"},
	}, verdicts)
	assert.Equal(t, []string{"inner", "outer"}, order)
}

// A failure during a stall of the machine leads to another trial, up to the last one. Other failures count at once.
func TestFailuresOfAStalledMachineDoNotCount(t *testing.T) {
	for name, tt := range map[string]struct {
		stalls, fails int // the first trials
		want          verdict
	}{
		"passes":          {0, 0, verdict{log: "trial 1"}},
		"passes, stalled": {1, 0, verdict{log: "trial 1"}},
		"fails": {0, 9,
			verdict{failed: true, log: "trial 1\nbroken\nthe rule of P: r\nwhy it matters: w"}},
		"fails while stalled": {2, 2, verdict{log: "again\nagain\ntrial 3"}},
		"fails, stalled or not": {2, 9,
			verdict{failed: true, log: "again\nagain\ntrial 3\nbroken\nthe rule of P: r\nwhy it matters: w"}},
		"fails, always stalling": {9, 9,
			verdict{failed: true,
				log: strings.Repeat("again\n", 7) + "counts\ntrial 8\nbroken\nthe rule of P: r\nwhy it matters: w"}},
	} {
		t.Run(name, func(t *testing.T) {
			trials, cleaned := 0, 0
			measured := watch
			watch = func() func() time.Duration {
				return func() time.Duration {
					if trials <= tt.stalls {
						return tolerable
					}
					return tolerable - 1
				}
			}
			defer func() { watch = measured }()
			got := recordInRealTime(t, &tt.stalls, []property[*int]{{"P", "r", "w", func(t testing.TB, _ *int) {
				assert.Equal(t, trials, cleaned, "the last one has cleaned up")
				trials++
				t.Cleanup(func() { cleaned++ })
				t.Logf("trial %d", trials)
				if trials <= tt.fails {
					t.Error("broken")
				}
			}}})["P"]
			stalled := regexp.MustCompile(`it failed while this process stood still for \S+, and (is checked )?(again|counts).*`)
			got.log = stalled.ReplaceAllString(got.log, "$2")
			assert.Equal(t, tt.want, got)
			assert.Equal(t, trials, cleaned)
		})
	}
}

// A failure during a stall of the store does not count either.
func TestFailuresOfAStalledStoreDoNotCount(t *testing.T) {
	measured := watch
	watch = func() func() time.Duration { return func() time.Duration { return 0 } }
	defer func() { watch = measured }()
	for name, tt := range map[string]struct{ stalls, fails, trials int }{
		"fails while stalled":   {2, 2, 3},
		"fails, stalled or not": {2, 9, 3},
		"fails":                 {0, 9, 1},
	} {
		t.Run(name, func(t *testing.T) {
			trials := 0
			got := recordInRealTime(t, 0, []property[int]{{"P", "r", "w", func(t testing.TB, _ int) {
				trials++
				start := time.Now().Add(time.Hour) // prompt, whatever the machine does
				if trials <= tt.stalls {
					start = time.Now().Add(-tolerable)
				}
				prompt(t, start)
				if trials <= tt.fails {
					t.Error("broken")
				}
			}}})["P"]
			assert.Equal(t, tt.trials, trials)
			assert.Equal(t, tt.fails > tt.stalls, got.failed)
		})
	}
}

// standing is a store that stands still for every few calls, as a file does that somebody else has locked now and then.
type standing struct {
	backend.Backend
	calls *atomic.Int32
}

func (s standing) Capabilities() backend.Capabilities { return backend.Of(s.Backend) }

func (s standing) wait() {
	if s.calls.Add(1)%6 == 0 {
		time.Sleep(10 * time.Second)
	}
}

func (s standing) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	s.wait()
	return s.Backend.Acquire(ctx, req)
}

func (s standing) Release(ctx context.Context, req backend.Request) error {
	s.wait()
	if err := ctx.Err(); err != nil {
		_ = s.Backend.Release(context.Background(), req)
		return fmt.Errorf("%w: %w", locker.ErrUnavailable, err)
	}
	return s.Backend.Release(ctx, req)
}

// A store that stands still while this process goes on gets the blame, and does not take minutes for a property.
func TestAStoreThatStandsStillIsBlamed(t *testing.T) {
	var p property[Harness]
	for _, p = range lockerProperties {
		if p.name == "FenceGrows" {
			break
		}
	}
	virtual.Test(t, func(t *testing.T) {
		start := time.Now()
		h := Harness{Store: func(testing.TB) Store {
			b := standing{memory.NewBackend(), new(atomic.Int32)}
			return Store{Open: func() backend.Backend { return b }}
		}}
		got := recordInRealTime(t, h, []property[Harness]{p})[p.name]
		assert.True(t, got.failed)
		assert.Contains(t, got.log, "it failed while the store stood still (a call took ")
		assert.Contains(t, got.log, ", and counts, because it is trial ")
		assert.NotRegexp(t, "machine|while this process", got.log)
		assert.Less(t, time.Since(start), time.Minute)
	})
}

// A slow call is the process's fault if the process stood still for about as long.
func TestBlame(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		process, store time.Duration
		want           string
	}{
		{0, 0, ""},
		{199 * ms, 199 * ms, ""},
		{200 * ms, 0, "this process"},
		{time.Second, 1100 * ms, "this process"},
		{0, 200 * ms, "the store"},
		{150 * ms, 300 * ms, "the store"},
		{300 * ms, 4 * time.Second, "the store"},
	} {
		got := blame(tt.process, tt.store)
		assert.Equal(t, tt.want == "", got == "", "%v, %v: %q", tt.process, tt.store, got)
		assert.True(t, strings.HasPrefix(got, tt.want), "%v, %v: %q", tt.process, tt.store, got)
	}
}

func TestRunMakesSubtests(t *testing.T) {
	ran := make(chan string, 2)
	t.Run("suite", func(t *testing.T) {
		check := func(t testing.TB, _ int) { ran <- t.Name() }
		run(t, 0, nil, []property[int]{{"One", "", "", check}, {"Two", "", "", check}})
	})
	assert.ElementsMatch(t, []string{t.Name() + "/suite/One", t.Name() + "/suite/Two"}, []string{<-ran, <-ran})
}

// Each property has a unique name, a rule and a reason, which are printed when it fails.
func TestPropertiesExplainThemselves(t *testing.T) {
	explained(t, driverProperties)
	explained(t, allSuites)
}

// Every failure message says what was expected and what was seen, including those that no planted flaw triggers.
// Messages about the harness, and about the suite's own servers, are excepted.
func TestFailuresSayWhatWasExpectedAndSeen(t *testing.T) {
	message := regexp.MustCompile(`\bt\.(?:Error|Fatal)f?\("(.*)`)
	split := regexp.MustCompile(`" ?\+\n\t+"`) // a message on two lines
	files, err := filepath.Glob("*.go")
	assert.NoError(t, err)
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		assert.NoError(t, err)
		for _, m := range message.FindAllStringSubmatch(split.ReplaceAllString(string(text), ""), -1) {
			if !strings.HasPrefix(m[1], "conformance: ") {
				assert.Regexp(t, "expected .*[,;] seen ", m[1], file)
				found++
			}
		}
	}
	assert.Greater(t, found, 150)
}

// eachHasItsOwn checks that each property has a flaw that no other property notices.
func eachHasItsOwn[H any](t *testing.T, properties []property[H], noticedAlone []string) {
	t.Helper()
	for _, p := range properties {
		assert.Contains(t, noticedAlone, p.name, "no flaw is noticed by %s alone", p.name)
	}
}

func explained[H any](t *testing.T, properties []property[H]) {
	seen := map[string]bool{}
	for _, p := range properties {
		assert.False(t, seen[p.name], "two properties are called %s", p.name)
		seen[p.name] = true
		for what, text := range map[string]string{"rule": p.rule, "reason": p.why} {
			assert.True(t, len(text) > 30 && strings.HasSuffix(text, ".") && !strings.Contains(text, "\n"),
				"the %s of %s: %q", what, p.name, text)
		}
	}
}

// verdict is the result of one property.
type verdict struct {
	failed, skipped bool
	log             string
}

// record runs each property against h as run does, and returns the verdicts by property name instead of reporting them.
// The tests of a suite expect a broken implementation to fail.
func record[H any](t testing.TB, h H, properties []property[H]) map[string]verdict {
	t.Helper()
	return recordBy(t, h, properties, property[H].verify)
}

// recordInRealTime is record for checks that a stall of the machine would fail.
func recordInRealTime[H any](t testing.TB, h H, properties []property[H]) map[string]verdict {
	t.Helper()
	return recordBy(t, h, properties, property[H].try)
}

func recordBy[H any](t testing.TB, h H, properties []property[H],
	verify func(property[H], testing.TB, H)) map[string]verdict {
	t.Helper()
	trials := make([]*trial, len(properties))
	var wg sync.WaitGroup
	for i, p := range properties {
		r := newTrial(t)
		r.name += "/" + p.name
		trials[i] = r
		wg.Go(func() { r.run(func() { verify(p, r, h) }) })
	}
	wg.Wait()
	verdicts := map[string]verdict{}
	for i, p := range properties {
		verdicts[p.name] = verdict{trials[i].Failed(), trials[i].Skipped(), trials[i].texts()}
	}
	return verdicts
}

// notCalled is the Bubble of harnesses for virtually.
func notCalled(*testing.T, func(*testing.T)) { panic("record makes no subtests") }

// virtually is record in one bubble for all properties.
func virtually[H any](t *testing.T, h H, properties []property[H]) (verdicts map[string]verdict) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		verdicts = record(t, h, properties)
		time.Sleep(2 * time.Minute) // goroutines that a property has abandoned come to their end
	})
	return verdicts
}

// wantFailures checks that the listed properties have failed and, unless broad is set, that no others have. Every
// failure has to print what was expected and what was seen, the rule, and its reason.
func wantFailures(t *testing.T, verdicts map[string]verdict, want []string, broad bool) {
	t.Helper()
	failed := failures(verdicts)
	names := slices.Sorted(maps.Keys(failed))
	if broad {
		assert.Subset(t, names, want)
	} else {
		assert.ElementsMatch(t, want, names)
	}
	for _, name := range names {
		said, _, _ := strings.Cut(failed[name], "\nthe rule of "+name+": ")
		for line := range strings.SplitSeq(said, "\n") {
			assert.Regexp(t, "expected .*[,;] seen ", line)
		}
		assert.Contains(t, failed[name], "\nthe rule of "+name+": ")
		assert.Contains(t, failed[name], "\nwhy it matters: ")
		if t.Failed() {
			first, _, _ := strings.Cut(failed[name], "\n")
			t.Logf("%s: %s", name, first)
		}
	}
}

// failures lists the names of the failed properties.
func failures(verdicts map[string]verdict) map[string]string {
	failed := map[string]string{}
	for name, v := range verdicts {
		if v.failed {
			failed[name] = v.log
		}
	}
	return failed
}

// texts returns the recorded lines without their positions.
func (r *trial) texts() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := make([]string, len(r.notes))
	for i, n := range r.notes {
		lines[i] = n.text
	}
	return strings.Join(lines, "\n")
}
