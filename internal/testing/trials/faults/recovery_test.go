package faults

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/testserver"
)

const (
	// recoveryEnv is how long TestRecovery runs. Without it, the test runs a selection once.
	recoveryEnv = "LOCKER_RECOVERY"
	// failoversEnv is the number of failovers of TestFailovers, with each of the settings.
	failoversEnv = "LOCKER_FAILOVERS"
)

// trial is one lapse, under many locks.
type trial struct {
	lapse
	driver  string
	nodes   int
	guarded bool
	waits   bool // for the replica, with single.WaitReplicas
	locks   int
	column  int // of the report
}

func (tr trial) String() string {
	servers, guard := "single", "without"
	if tr.nodes > 1 {
		servers = "Redlock"
	}
	if tr.guarded {
		guard = "guard"
	}
	return strings.ReplaceAll(fmt.Sprintf("%s/%s/%s/%s/%d", tr.name, servers, tr.driver, guard, tr.column), " ", "_")
}

// doubles counts locks, and those of them that had two holders, by kind of lapse and by column.
type doubles struct {
	columns []string

	mu    sync.Mutex
	cells map[string]*[4]cell
	holds int
}

type cell struct{ doubles, locks int }

func (c cell) String() string { return fmt.Sprintf("%d of %d", c.doubles, c.locks) }

// play runs trials, some of them at the same time. They mostly wait.
func (r *doubles) play(t *testing.T, beside int, give func(run func(trial))) {
	r.cells = map[string]*[4]cell{}
	todo := make(chan trial)
	var running sync.WaitGroup
	for range beside {
		running.Go(func() {
			for tr := range todo {
				t.Run(tr.String(), func(t *testing.T) { r.record(t, tr, tr.run(t)) })
			}
		})
	}
	give(func(tr trial) { todo <- tr })
	close(todo)
	running.Wait()
}

func (r *doubles) record(t *testing.T, tr trial, got lapsed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cells[tr.name] == nil {
		r.cells[tr.name] = &[4]cell{}
	}
	c := &r.cells[tr.name][tr.column]
	c.doubles += len(got.doubles)
	c.locks += tr.locks
	r.holds += got.holds
	if tr.guarded && len(got.doubles) > 0 {
		t.Errorf("%d of %d locks had two holders: %v", len(got.doubles), tr.locks, got.doubles[0])
	}
	if got.idle > tr.locks/2 && !tr.blocked {
		t.Errorf("nobody had %d of %d locks after the fault, which shows little", got.idle, tr.locks)
	}
}

// table returns the table in Markdown, with a line for each kind of lapse, and the sums.
func (r *doubles) table(of string, all []lapse) (text string, sums [4]cell) {
	text = fmt.Sprintf("| %s | %s |\n| --- |%s\n", of, strings.Join(r.columns, " | "), strings.Repeat(" --: |", 4))
	line := func(name string, cells [4]cell) {
		text += fmt.Sprintf("| %s | %v | %v | %v | %v |\n", name, cells[0], cells[1], cells[2], cells[3])
	}
	for _, k := range all {
		cells := r.cells[k.name]
		if cells == nil {
			continue
		}
		line(k.name, *cells)
		for i, c := range cells {
			sums[i] = cell{sums[i].doubles + c.doubles, sums[i].locks + c.locks}
		}
	}
	line("all", sums)
	return text, sums
}

// Under the guard no lock has two holders, however servers forget. Without it, many have.
func TestRecovery(t *testing.T) {
	const beside = 3
	long, began := scale(t, recoveryEnv, 0, time.ParseDuration), time.Now()
	run := &doubles{columns: []string{"single, without", "single, guard", "Redlock, without", "Redlock, guard"}}
	run.play(t, beside, func(play func(trial)) {
		deadline := began.Add(long)
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
					play(tr)
				}
			}
		}
	})
	text, sums := run.table("fault", lapses())
	for _, k := range lapses() {
		if c := run.cells[k.name]; k.forgets && c != nil && c[0].locks > 0 && c[0].doubles+c[2].doubles == 0 {
			t.Errorf("%s: without the guard, no lock had two holders: the fault is too weak", k.name)
		}
	}
	if why := testserver.NoClock(); why != "" {
		text += fmt.Sprintf("\nClocks were not moved: %s.", why)
	}
	t.Logf("`%s=%v go test -C internal/testing/trials -run TestRecovery ./faults`, %s, %s, %s, %s/%s, "+
		"%d processors: %d locks with the guard and %d without in %v, %d acquisitions.\n\n%s", recoveryEnv, long,
		began.Format("2 January 2006 15:04"), redistest.Version(redistest.Binary(t)), runtime.Version(), runtime.GOOS,
		runtime.GOARCH, runtime.NumCPU(), sums[1].locks+sums[3].locks, sums[0].locks+sums[2].locks,
		time.Since(began).Round(time.Second), run.holds, text)
}

// trials returns the trials of a round: each lapse with each driver on each kind of deployment, with the guard and
// without. If all is false, they are one of these for each lapse that is short, with the guard.
func trials(round int, all bool) (list []trial) {
	for i, k := range lapses() {
		if k.clock && testserver.NoClock() != "" {
			continue
		}
		for j, driver := range drivers.Names() {
			for column := range 4 {
				tr := trial{lapse: k, driver: driver, nodes: 1 + column/2*2, guarded: column%2 > 0, locks: 200, column: column}
				if !all {
					tr.locks = 40
				}
				if all || k.short && tr.guarded && (i+j)%len(drivers.Names()) == 0 && (tr.nodes == 1) == (i%2 == 0) {
					list = append(list, tr)
				}
			}
		}
	}
	n := len(list)
	for i := range list { // each round begins with other lapses, because the time may end in the middle
		if j := (i + round*n/3) % n; j > i {
			list[i], list[j] = list[j], list[i]
		}
	}
	return list
}

// Failovers of one master with each of the settings. With the guard, no lock has two holders.
func TestFailovers(t *testing.T) {
	n, locks := scale(t, failoversEnv, 1, strconv.Atoi), 40
	if n > 1 {
		locks = 100
	}
	run := &doubles{columns: []string{"nothing", "WaitReplicas", "guard", "both"}}
	run.play(t, 6, func(play func(trial)) {
		for i := range n {
			k := failovers()[i%len(failovers())]
			driver := drivers.Names()[i/len(failovers())%len(drivers.Names())]
			for j := range run.columns {
				if n > 1 || j == len(run.columns)-1 {
					play(trial{lapse: k, driver: driver, nodes: 1, waits: j%2 == 1, guarded: j >= 2, locks: locks, column: j})
				}
			}
		}
	})
	text, _ := run.table("the replica that takes over", failovers())
	t.Logf("%d failovers with each setting, %s\n%s", n, redistest.Version(redistest.Binary(t)), text)
}
