package recovery

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker/drivers"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/testserver"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, append(redistest.Lingering(), goleak.Cleanup(func(code int) {
		testserver.RemoveLibraries()
		os.Exit(code)
	}))...)
}

const (
	// durationEnv is how long TestRecovery runs. Without it, the test runs a selection once.
	durationEnv = "LOCKER_RECOVERY"
	// onlyEnv selects trials by a part of their names.
	onlyEnv = "LOCKER_RECOVERY_ONLY"
)

// beside is the number of trials that run at the same time. They mostly wait.
const beside = 3

// Under the guard no lock has two holders, however servers forget. Without it, many have.
func TestRecovery(t *testing.T) {
	var long time.Duration
	if text := os.Getenv(durationEnv); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	run := &report{began: time.Now(), server: redistest.Version(redistest.Binary(t)), rows: map[string]*row{}}
	todo := make(chan trial)
	var players sync.WaitGroup
	for range beside {
		players.Go(func() {
			for tr := range todo {
				t.Run(tr.String(), func(t *testing.T) { run.record(t, tr, tr.run(t)) })
			}
		})
	}
	deadline := run.began.Add(long)
	for round := 0; round == 0 || time.Now().Before(deadline); round++ {
		list := trials(round, long > 0)
		if long == 0 {
			list = short.Part(t, beside, list)
		}
		for _, tr := range list {
			if round > 0 && time.Now().After(deadline) {
				break
			}
			if strings.Contains(tr.String(), os.Getenv(onlyEnv)) {
				todo <- tr
			}
		}
	}
	close(todo)
	players.Wait()
	run.finish(t, long)
}

// trial is one fault, under many locks. Each of them is an episode.
type trial struct {
	kind    kind
	driver  string
	nodes   int
	guarded bool
	waits   bool // for the replica, with single.WaitReplicas
	locks   int
}

func (tr trial) String() string {
	servers, guard := "single", "without"
	if tr.nodes > 1 {
		servers = "Redlock"
	}
	if tr.guarded {
		guard = "guard"
	}
	return strings.ReplaceAll(tr.kind.name+"/"+servers+"/"+tr.driver+"/"+guard, " ", "_")
}

// trials returns the trials of a round: each fault with each driver on each kind of deployment, with the guard and
// without. If all is false, they are one of these for each fault that is brief, with the guard.
func trials(round int, all bool) (list []trial) {
	for i, k := range kinds() {
		if k.clock && testserver.NoClock() != "" {
			continue
		}
		for j, driver := range drivers.Names() {
			for _, nodes := range []int{1, 3} {
				for _, guarded := range []bool{true, false} {
					locks := 200
					if !all {
						locks = 40
					}
					chosen := k.short && guarded && (i+j)%3 == 0 && (nodes == 1) == (i%2 == 0)
					if all || chosen {
						list = append(list, trial{kind: k, driver: driver, nodes: nodes, guarded: guarded, locks: locks})
					}
				}
			}
		}
	}
	n := len(list)
	for i := range list { // each round begins with other faults, because the time may end in the middle
		if j := (i + round*n/3) % n; j > i {
			list[i], list[j] = list[j], list[i]
		}
	}
	return list
}
