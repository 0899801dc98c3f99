package recovery

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/testserver"
)

// report collects the results of a run.
type report struct {
	began  time.Time
	server string // version of the servers

	mu    sync.Mutex
	rows  map[string]*row
	holds int
}

// row is a line of the report: one fault with one driver.
type row struct{ cells [4]cell }

// cell counts episodes, and those with two holders.
type cell struct{ doubles, episodes int }

func (c cell) String() string { return fmt.Sprintf("%d of %d", c.doubles, c.episodes) }

// columns are in the order of cells.
var columns = []string{"single, without", "single, guard", "Redlock, without", "Redlock, guard"}

func (tr trial) column() (i int) {
	if tr.nodes > 1 {
		i += 2
	}
	if tr.guarded {
		i++
	}
	return i
}

func (r *report) record(t *testing.T, tr trial, got result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := tr.kind.name + " | " + tr.driver
	if r.rows[name] == nil {
		r.rows[name] = &row{}
	}
	c := &r.rows[name].cells[tr.column()]
	c.doubles += len(got.doubles)
	c.episodes += got.episodes
	r.holds += got.holds
	if tr.guarded && len(got.doubles) > 0 {
		t.Errorf("%d of %d locks had two holders: %v", len(got.doubles), got.episodes, got.doubles[0])
	}
	if got.idle > got.episodes/2 && !tr.kind.blocked {
		t.Errorf("nobody had %d of %d locks after the fault, which shows little", got.idle, got.episodes)
	}
}

// finish judges the run as a whole, and prints the table.
func (r *report) finish(t *testing.T, long time.Duration) {
	var text strings.Builder
	fmt.Fprintf(&text, "| fault | %s |\n| --- |%s\n", strings.Join(columns, " | "),
		strings.Repeat(" --: |", len(columns)))
	var sums [4]cell
	for _, k := range kinds() {
		var of [4]cell
		for _, driver := range drivers.Names() {
			w := r.rows[k.name+" | "+driver]
			if w == nil {
				continue
			}
			for i, c := range w.cells {
				of[i] = cell{of[i].doubles + c.doubles, of[i].episodes + c.episodes}
				sums[i] = cell{sums[i].doubles + c.doubles, sums[i].episodes + c.episodes}
			}
		}
		if of == [4]cell{} {
			continue
		}
		fmt.Fprintf(&text, "| %s |", k.name)
		for _, c := range of {
			fmt.Fprintf(&text, " %v |", c)
		}
		text.WriteString("\n")
		if k.forgets && of[0].episodes > 0 && of[0].doubles+of[2].doubles == 0 {
			t.Errorf("%s: without the guard, no lock had two holders: the fault is too weak", k.name)
		}
	}
	fmt.Fprintf(&text, "| all |")
	for _, c := range sums {
		fmt.Fprintf(&text, " %v |", c)
	}
	if why := testserver.NoClock(); why != "" {
		fmt.Fprintf(&text, "\n\nClocks were not moved: %s.", why)
	}
	head := fmt.Sprintf("`%s=%v go test -C internal/testing/trials -run TestRecovery ./recovery`, %s, %s, %s, %s/%s, "+
		"%d processors: %d episodes with the guard and %d without in %v, %d acquisitions.", durationEnv, long,
		r.began.Format("2 January 2006 15:04"), r.server, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(),
		sums[1].episodes+sums[3].episodes, sums[0].episodes+sums[2].episodes, time.Since(r.began).Round(time.Second), r.holds)
	t.Logf("%s\n\n%s", head, text.String())
}
