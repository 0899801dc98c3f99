package sim

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/trials/history"
	"github.com/golocker/locker/internal/testing/virtual"
)

var (
	seeds   = flag.Int("seeds", 60, "how many episodes to play")
	first   = flag.Uint64("seed", 0, "the first seed; 0: drawn")
	profile = flag.String("profile", string(Model), "model, guard, unguarded, forget or drift")
	once    = flag.Bool("once", false, "stop after the first episode in which a rule is broken")
	tell    = flag.Bool("tell", false, "log all that happens")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// play plays the episode of one seed and judges it.
func play(t *testing.T, o Options) (r *Result) {
	defer func() {
		if p := recover(); p != nil { // a bubble that is stuck
			fmt.Fprintf(os.Stderr, "%v\n%s\n%v\n", p, o.again(), o)
			panic(p)
		}
	}()
	cryptotest.SetGlobalRandom(t, o.Seed)
	virtual.Test(t, func(t *testing.T) {
		seedRuntime(o.Seed)
		r = Play(t, o)
	})
	r.Model(o)
	return r
}

// again is the line that plays an episode again.
func (o Options) again() string {
	return fmt.Sprintf("again: make sim SEED=%d PROFILE=%s", o.Seed, o.Profile)
}

// batch is a number of episodes.
type batch struct {
	counts     map[string]int
	broken     map[string][]uint64 // the seeds of the episodes in which a rule was broken, by rule
	violations int
	virtual    time.Duration
	hash       uint64 // of all their histories
}

// playAll plays n episodes. A violation of a rule for which expected does not hold is an error.
func playAll(t *testing.T, p Profile, from uint64, n int, expected func(rule string) bool) batch {
	t.Helper()
	// What runs next is decided by the order of events alone as far as that is possible: one processor, and no
	// collection of garbage in an episode.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	b := batch{counts: map[string]int{}, broken: map[string][]uint64{}}
	play(t, Draw(0, Model)) // what happens once in a process has happened then
	for i := range n {
		if i%20 == 0 {
			runtime.GC()
		}
		o := Draw(from+uint64(i), p)
		o.Trace = *tell
		r := play(t, o)
		for _, line := range r.Told {
			fmt.Println(line)
		}
		b.virtual += r.Virtual
		b.hash = b.hash*31 + r.Hash
		for what, n := range r.Counts {
			b.counts[what] += n
		}
		rules := map[string]bool{}
		b.violations += len(r.Violations)
		for _, v := range r.Violations {
			if !rules[v.Rule] && !expected(v.Rule) {
				t.Errorf("%v\n%s\n%v", v, o.again(), o)
			}
			rules[v.Rule] = true
		}
		for rule := range rules {
			b.broken[rule] = append(b.broken[rule], o.Seed)
		}
		if *once && t.Failed() {
			break
		}
	}
	return b
}

func (b batch) String() string {
	var s strings.Builder
	faults := 0
	for _, k := range kinds {
		faults += b.counts[k.name]
	}
	fmt.Fprintf(&s, "  attempts %d, faults %d, violations %d\n", b.counts["attempts"], faults, b.violations)
	for _, what := range slices.Sorted(maps.Keys(b.counts)) {
		fmt.Fprintf(&s, "  %-30s %9d\n", what, b.counts[what])
	}
	for _, rule := range slices.Sorted(maps.Keys(b.broken)) {
		broken := b.broken[rule]
		fmt.Fprintf(&s, "  seeds that broke %-13s %9d: %d\n", rule, len(broken), broken[:min(8, len(broken))])
	}
	return s.String()
}

// quotas are what a batch needs, for it to show anything: less than half of what is usual, so that a batch of ordinary
// luck passes. A small one cannot promise rare things.
func quotas(episodes int) map[string]int {
	needed := map[string]int{
		"acquisitions": 15 * episodes, "attempts": 30 * episodes, "fenced updates": 12 * episodes,
		"marks": 20 * episodes, "joined with others": episodes / 4, "script raise": episodes / 2, "renewals": episodes / 4,
		"verified": 3 * episodes, "updates lost without tokens": episodes / 100, "stale accesses refused": episodes / 200,
		"inline exchanges": 5 * episodes, "batches of direct drivers": episodes / 10,
		"calls beside a server that is ill": episodes / 2, "handed over, several nodes": episodes / 20,
		"handed over, one node": episodes / 20,
	}
	for _, k := range kinds {
		needed[k.name] = episodes / 30
	}
	return needed
}

func firstSeed() uint64 {
	if *first != 0 {
		return *first
	}
	return rand.Uint64N(1 << 40)
}

func neverExpected(string) bool { return false }

// Real clients over real backends keep every promise that holds under faults, whatever the seeds draw.
func TestSimulation(t *testing.T) {
	began, from := time.Now(), firstSeed()
	expected := timing
	switch Profile(*profile) {
	case Model:
		expected = neverExpected
	case Guard:
		expected = earlyLoss
	case Unguarded:
		expected = anything
	}
	n := *seeds
	b := playAll(t, Profile(*profile), from, n, expected)
	missed := func() (found []history.Violation) {
		if p := Profile(*profile); *seeds < 50 || p != Model && p != Guard || t.Failed() {
			return nil
		}
		needed := quotas(n)
		if Profile(*profile) == Guard {
			delete(needed, kinds[died].name)
		}
		return history.Quota(b.counts, needed)
	}
	// What comes in few episodes, many at once, may be missing in a small batch. Twice as many have to have it.
	if len(missed()) > 0 {
		n *= 2
		b = playAll(t, Profile(*profile), from, n, expected)
	}
	took := time.Since(began)
	report := fmt.Sprintf("%d seeds from %d, profile %s, runtime seeded: %v; histories %x; %v, %.0f seeds/s, %.0f × "+
		"real time\n%v",
		n, from, *profile, seeded, b.hash, took.Round(time.Millisecond), float64(n)/took.Seconds(),
		float64(b.virtual)/float64(took), b)
	t.Log(report)
	for _, v := range missed() {
		t.Error(v)
	}
}

// timing holds for rules that rest on sound timing or on nodes that do not forget.
func timing(rule string) bool {
	always := []string{"UNIQ", "RT", "CERT", "OWN", "NODE", "FENCE", "DONE", "PROMPT", "CLOSE", "LIVE"}
	return !slices.Contains(always, rule)
}

// earlyLoss holds for LOST: a node that forgets takes locks from their owners before their time.
func earlyLoss(rule string) bool { return rule == "LOST" }

// anything: a node of a Redlock that forgets and answers at once may even have tokens issued twice.
func anything(string) bool { return true }

// With the restart guard, exclusion survives nodes that forget. Without it, it does not.
func TestGuardKeepsExclusion(t *testing.T) {
	few := 20
	if testing.Short() {
		few = 8
	}
	from := firstSeed()
	t.Logf("%d episodes with the guard, from %d\n%v", few, from, playAll(t, Guard, from, few, earlyLoss))
	for played := 0; len(playAll(t, Unguarded, from+uint64(played), few, anything).broken["ME"]) == 0; played += few {
		if played >= 400 {
			t.Fatalf("exclusion held in %d episodes from %d without the guard, which is suspicious", played, from)
		}
	}
}

// A node whose clock is the slowest is away until it has passed the token of the fastest: the condition of G2.
func TestNodesThatForgetComeBackPastEveryToken(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		w := &world{Options: Options{Skew: 10 * time.Millisecond, Drift: .15}, history: history.New()}
		clock := func(at, skew time.Duration, drift float64) time.Duration {
			return at + skew + time.Duration(drift*float64(at))
		}
		for range 5 {
			time.Sleep(time.Second)
			now := w.history.Now()
			slowest, fastest := clock(now+w.past(), -w.Skew, -w.Drift), clock(now, w.Skew, w.Drift)
			if quantum := 65_536 * time.Microsecond; slowest < fastest+quantum {
				t.Errorf("a node that forgets after %v is back when its clock shows %v, and tokens have reached %v",
					now, slowest, fastest)
			}
		}
	})
}

// Where nodes forget, or clocks run wild, exclusion breaks, so the faults are strong enough and the judge sees it.
// Tokens keep their promise even then, and what checks them loses nothing.
func TestTokensHoldWhereExclusionDoesNot(t *testing.T) {
	for _, p := range short.Part(t, 1, []Profile{Forget, Drift}) {
		t.Run(string(p), func(t *testing.T) {
			const few, most = 20, 400
			from, played := firstSeed(), 0
			for broken := 0; broken == 0 && !t.Failed(); played += few {
				if played >= most {
					t.Fatalf("exclusion held in %d episodes from %d, which is suspicious", played, from)
				}
				broken = len(playAll(t, p, from+uint64(played), few, timing).broken["ME"])
			}
			t.Logf("exclusion was broken within %d episodes from %d", played, from)
		})
	}
}
