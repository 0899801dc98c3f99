package faults

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/trials/history"
)

// report collects the results of a run.
type report struct {
	began  time.Time
	seed   uint64
	server string // version of the servers

	mu      sync.Mutex
	results []*result
	skipped map[string]string // reasons, by kind
}

func (r *report) skip(k kind, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.skipped == nil {
		r.skipped = map[string]string{}
	}
	r.skipped[k.name] = why
}

func (r *report) record(t *testing.T, got *result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, got)
	got.accounts = nil // they have all events, which would fill the memory in a long run
	const most = 10
	for i, v := range got.failed {
		if i == most {
			t.Errorf("and %d more", len(got.failed)-most)
			break
		}
		t.Errorf("%v (%s='%s/%v')", v, onlyEnv, got.kind.name, got.place)
	}
	t.Logf("%d acquisitions, %d faults from %v to %v, outside the promises: %s", got.holds, got.injected,
		got.from.Round(time.Millisecond), got.to.Round(time.Millisecond), rules(got.outside))
}

// rules counts violations by rule.
func rules(found []history.Violation) string {
	n := map[string]int{}
	for _, v := range found {
		n[v.Rule]++
	}
	var parts []string
	for _, rule := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%s %d", rule, n[rule]))
	}
	if parts == nil {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// row is a line of the report, about one fault.
type row struct {
	ops             map[string]tally
	failed, outside []history.Violation
}

func (r *report) rows() map[string]*row {
	rows := map[string]*row{}
	for _, got := range r.results {
		w := rows[got.kind.name]
		if w == nil {
			w = &row{ops: map[string]tally{}}
			rows[got.kind.name] = w
		}
		w.failed = append(w.failed, got.failed...)
		w.outside = append(w.outside, got.outside...)
		for op, t := range got.ops {
			sum := w.ops[op]
			w.ops[op] = tally{sum.hit + t.hit, sum.ok + t.ok, sum.held + t.held}
		}
	}
	return rows
}

// missing returns the operations that a fault has to hit and has not, by the names of faults. A run of selected
// episodes misses nothing.
func (r *report) missing() map[string][]string {
	missing := map[string][]string{}
	if os.Getenv(onlyEnv) != "" {
		return missing
	}
	rows := r.rows()
	for _, k := range kinds() {
		for _, op := range operations {
			w := rows[k.name]
			if r.skipped[k.name] == "" && !(op == "raise" && k.alone()) && (w == nil || w.ops[op].hit == 0) {
				missing[k.name] = append(missing[k.name], op)
			}
		}
	}
	return missing
}

// finish judges the run as a whole, and prints the table.
func (r *report) finish(t *testing.T, long time.Duration) {
	rows := r.rows()
	holds, lost, blind, refused := 0, 0, 0, 0
	for _, got := range r.results {
		holds += got.holds
		refused += got.refused
		blind += got.lost[1]
		if got.fenced() {
			lost += got.lost[0]
		}
	}
	if long > 0 {
		// A run with too few events must not count as a clean one.
		for name, what := range r.missing() {
			t.Errorf("%s has hit no %s", name, strings.Join(what, ", no "))
		}
		if blind == 0 && os.Getenv(onlyEnv) == "" {
			t.Error("the register that does not look at tokens has lost no update: the faults were too weak")
		}
	}
	text := r.table(rows)
	head := fmt.Sprintf("%d episodes in %v, %d acquisitions, %d faults. Registers that look at tokens "+
		"refused %d accesses and lost %d updates where tokens are promised; their twins that do not look lost %d.",
		len(r.results), time.Since(r.began).Round(time.Second), holds, r.faults(), refused, lost, blind)
	if long == 0 && !testing.Verbose() {
		return
	}
	t.Logf("%s%s\n\n%s", r.preamble(long), head, text)
}

func (r *report) faults() (n int) {
	for _, got := range r.results {
		n += got.injected
	}
	return n
}

func (r *report) preamble(long time.Duration) string {
	return fmt.Sprintf("`%s=%v go test -C internal/testing/trials -run TestFaults ./faults`, %s, %s, %s/%s, "+
		"%d processors, seed %d.\n",
		durationEnv, long, r.began.Format("2 January 2006 15:04"), r.server+", "+runtime.Version(), runtime.GOOS,
		runtime.GOARCH, runtime.NumCPU(), r.seed)
}

// table returns the table in Markdown.
func (r *report) table(rows map[string]*row) string {
	var b strings.Builder
	b.WriteString("| fault | what happens | result |\n| --- | --- | --- |\n")
	for _, k := range kinds() {
		w := rows[k.name]
		if why := r.skipped[k.name]; why != "" {
			fmt.Fprintf(&b, "| %s | %s | skipped: %s |\n", k.name, k.what, strings.ReplaceAll(why, "\n", " "))
			continue
		}
		if w == nil {
			continue
		}
		fmt.Fprintf(&b, "| %s | %s |", k.name, k.what)
		switch {
		case len(w.failed) > 0:
			fmt.Fprintf(&b, " **FAILED**: %s |\n", rules(w.failed))
		case len(w.outside) > 0:
			fmt.Fprintf(&b, " ok; outside: %s |\n", rules(w.outside))
		case k.forgets:
			b.WriteString(" ok; outside: nothing seen |\n")
		default:
			b.WriteString(" ok |\n")
		}
	}
	return b.String()
}

// field returns a field of an answer to INFO.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
