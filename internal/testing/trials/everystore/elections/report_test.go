package elections

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
)

// report collects what the judges saw.
type report struct {
	began  time.Time
	server string

	mu   sync.Mutex
	seen map[string][2]*judge // of the election, and of the lock beside it
}

func newReport(t *testing.T) *report {
	return &report{began: time.Now(), server: redistest.Version(redistest.Binary(t)), seen: map[string][2]*judge{}}
}

func (r *report) add(d deployment.Deployment, election, bare *judge) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[d.Name] = [...]*judge{election, bare}
}

// finish fails the test if a judge saw what must not happen, and prints a table.
func (r *report) finish(t *testing.T, terms string) {
	var b strings.Builder
	b.WriteString("| | terms | visits | two leaders | late visits | lock: hand-over | lock: rolling restart |")
	for _, k := range kinds {
		fmt.Fprintf(&b, " %s |", k.kind)
	}
	b.WriteString("\n| --- | --: | --: | --: | --: | --: | --: |" + strings.Repeat(" --: |", len(kinds)) + "\n")
	for _, d := range deployment.All {
		j, bare := r.seen[d.Name][0], r.seen[d.Name][1]
		if j == nil {
			continue
		}
		wrong := slices.Concat(j.wrong, bare.wrong)
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %s | %s |",
			d.Name, j.terms, j.visits, len(wrong), j.late, gaps(bare.gaps[resigns]), gaps(bare.gaps[restarts]))
		for _, k := range kinds {
			b.WriteString(" " + gaps(j.gaps[k.kind]) + " |")
		}
		b.WriteString("\n")
		for _, wrong := range wrong {
			t.Errorf("%s: %s", d.Name, wrong)
		}
		if j.terms < 5 {
			t.Errorf("%s: only %d terms", d.Name, j.terms)
		}
	}
	head := fmt.Sprintf("`%s=%s go test -C internal/testing/trials/everystore -run TestElections ./elections`, %s, %s, "+
		"%s, %s/%s, %d processors, in %v.", termsEnv, terms, r.began.Format("2 January 2006 15:04"), r.server,
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), time.Since(r.began).Round(time.Second))
	t.Logf("%s\n\n%s", head, b.String())
}

// gaps returns the median and the 99th percentile, in milliseconds.
func gaps(all []time.Duration) string {
	if len(all) == 0 {
		return "–"
	}
	ms := func(q float64) float64 { return float64(quantile(all, q)) / float64(time.Millisecond) }
	return fmt.Sprintf("%.1f / %.1f", ms(.5), ms(.99))
}
