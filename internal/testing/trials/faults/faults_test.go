package faults

import (
	"iter"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/testserver"
)

// The test binary is also the program of the players in other processes.
func TestMain(m *testing.M) {
	if os.Getenv(planEnv) != "" {
		playChild()
		return
	}
	goleak.VerifyTestMain(m, append(redistest.Lingering(), goleak.Cleanup(func(code int) {
		testserver.RemoveLibraries()
		os.Exit(code)
	}))...)
}

const (
	// durationEnv is how long TestFaults runs. Without it, the test runs a selection once.
	durationEnv = "LOCKER_FAULTS"
	// onlyEnv selects episodes by a part of their names.
	onlyEnv = "LOCKER_FAULTS_ONLY"
)

type selectedKind struct {
	kind  string
	place placement
}

// selection has the episodes of every `go test`: one of each group, in the placement where it matters most. With -short
// three of them run.
var selection = []selectedKind{
	{"kill -9, AOF always", placement{3, 2}}, {"client SIGSTOP", placement{3, 3}},
	{"cut after execution", placement{1, 1}},
	{"partition", placement{3, 2}}, {"FLUSHALL", placement{1, 1}}, {"NOREPLICAS", placement{3, 1}},
	{"cluster: slots migrate", placement{1, 1}}, {"cluster: CLUSTER FAILOVER", placement{1, 1}},
}

// The promises of docs/safety.md hold whatever happens to servers, network, clients and clocks.
func TestFaults(t *testing.T) {
	seed := rand.Uint64() >> 40
	long := scale(t, durationEnv, 0, time.ParseDuration)
	run := &report{began: time.Now(), seed: seed, server: redistest.Version(redistest.Binary(t))}
	if long == 0 {
		t.Parallel()
	}
	for _, k := range kinds() {
		if !k.clock {
			continue
		}
		if why := testserver.NoClock(); why != "" {
			run.skip(k, why)
		}
	}
	t.Run("episodes", func(t *testing.T) {
		if long == 0 {
			run.play(t, selected(short.Part(t, 3, selection), seed, run.skipped))
			return
		}
		run.rounds(t, long)
	})
	run.finish(t, long)
}

// scale returns the value of a variable, or the usual one without it.
func scale[T any](t *testing.T, env string, usual T, parse func(text string) (T, error)) T {
	t.Helper()
	text := os.Getenv(env)
	if text == "" {
		return usual
	}
	value, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// selected has the episodes of a selection but for the kinds that this machine cannot play.
func selected(all []selectedKind, seed uint64, skipped map[string]string) iter.Seq[episode] {
	return func(yield func(episode) bool) {
		for i, s := range all {
			for _, k := range kinds() {
				if k.name == s.kind && skipped[k.name] == "" && !yield(episode{k, s.place, seed + uint64(i)}) {
					return
				}
			}
		}
	}
}

// beside is the number of episodes that run at the same time. Each has some ten processes: with eight at once on two
// processors, clients waited half a minute for their first lock, and the whole took twice as long as with four.
var beside = 2 * runtime.NumCPU()

// more is how much longer a run takes at most for faults that have hit too little.
const more = 2 * time.Minute

// rounds goes through all faults and placements until the time is over, and then through the faults that have not hit
// each operation. The order of each round is random, so that a fault does not always run beside the same others.
func (r *report) rounds(t *testing.T, long time.Duration) {
	deadline, round := r.began.Add(long), 0
	r.play(t, func(yield func(episode) bool) {
		for ; time.Now().Before(deadline); round++ {
			for _, e := range r.round(round) {
				if time.Now().After(deadline) || !yield(e) {
					return
				}
			}
		}
	})
	for last := deadline.Add(more); time.Now().Before(last); round++ {
		missing := r.missing()
		if len(missing) == 0 {
			return
		}
		r.play(t, func(yield func(episode) bool) {
			for _, e := range r.round(round) {
				if missing[e.kind.name] != nil && !yield(e) {
					return
				}
			}
		})
	}
}

// play runs episodes, some of them at the same time, and waits for them.
func (r *report) play(t *testing.T, all iter.Seq[episode]) {
	todo := make(chan episode)
	var wg sync.WaitGroup
	for range beside {
		wg.Go(func() {
			for e := range todo {
				t.Run(strings.ReplaceAll(e.String(), " ", "_"), func(t *testing.T) { r.record(t, e.run(t)) })
			}
		})
	}
	for e := range all {
		todo <- e
	}
	close(todo)
	wg.Wait()
}

// round lists the episodes of one round: each fault in each placement, in four parts that each have every fault.
func (r *report) round(n int) (all []episode) {
	only := os.Getenv(onlyEnv)
	random := rand.New(rand.NewPCG(r.seed, uint64(n)))
	for part := range placements {
		begin := len(all)
		for i, k := range kinds() {
			if r.skipped[k.name] != "" {
				continue
			}
			variants := placements[(part+i)%len(placements)]
			p := variants[n%len(variants)]
			if k.alone() {
				p = placements[0][0]
			}
			if e := (episode{k, p, random.Uint64() >> 40}); strings.Contains(e.String(), only) {
				all = append(all, e)
			}
		}
		random.Shuffle(len(all)-begin, func(i, j int) { all[begin+i], all[begin+j] = all[begin+j], all[begin+i] })
	}
	return all
}
