package conformance

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"
)

// property is one promise of a contract, with the check for it. H is the harness of the suite.
//
// A check takes a testing.TB, not a *testing.T, for two reasons. The tests of this package run it against
// implementations with planted bugs and record the verdict (see record in property_test.go). And a failed check may be
// repeated (see try). As in any test, only the goroutine that runs the check may call FailNow and similar methods.
type property[H any] struct {
	name  string // the subtest
	rule  string // printed on failure
	why   string // what goes wrong if the rule is broken; printed as well
	check func(t testing.TB, h H)
}

// run runs each property in a subtest of t: either in its own bubble, or in parallel with the others. In the second
// case a property that failed is repeated if this process or the store stood still.
func run[H any](t *testing.T, h H, bubble func(*testing.T, func(*testing.T)), properties []property[H]) {
	for _, p := range properties {
		t.Run(p.name, func(t *testing.T) {
			if bubble != nil {
				defer explain(t)
				bubble(t, func(t *testing.T) { p.verify(t, h) })
				return
			}
			t.Parallel()
			p.try(t, h)
		})
	}
}

// explain says what to do if a bubble panics because of goroutines that are left.
func explain(t testing.TB) {
	p := recover()
	if p == nil {
		return
	}
	if strings.Contains(fmt.Sprint(p), "blocked goroutines remain") {
		t.Log("conformance: goroutines of the implementation were left at the end of the property. Give the Backend or the " +
			"Locker a method Close() error that ends them, which the suite calls, or end them with t.Cleanup in Harness.Store.")
	}
	panic(p)
}

// verify runs the check. If it fails, verify prints the rule and its reason.
func (p property[H]) verify(t testing.TB, h H) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the rule of %s: %s", p.name, p.rule)
			t.Logf("why it matters: %s", p.why)
		}
	})
	p.check(t, h)
}

const (
	// tolerable is the longest stall of the process or the store at which a failed trial still counts. The TTLs and
	// time limits of the suite leave room for it.
	tolerable = 200 * time.Millisecond
	// maxTrials is how often a property is checked at most, and maxTrying is for how long another trial may begin. The
	// last trial always counts.
	maxTrials = 8
	maxTrying = 30 * time.Second
)

// try is verify in real time. A busy machine may stop this process, or the store's process, for seconds. A failure
// during such a stall says nothing about the implementation, so the property is checked again with a new store. A store
// that stands still by itself, for example because somebody has locked its file, does so in the last trial, too. The
// alternative, longer TTLs and more slack, was rejected: every run would take longer and would miss smaller delays.
func (p property[H]) try(t testing.TB, h H) {
	t.Helper()
	start := time.Now()
	for n := 1; ; n++ {
		trial := newTrial(t)
		stall := watch()
		trial.run(func() { p.verify(trial, h) })
		cause := blame(stall(), trial.slowest)
		if cause == "" || !trial.Failed() {
			trial.report()
			return
		}
		if n == maxTrials || time.Since(start) >= maxTrying {
			t.Logf("it failed while %s, and counts, because it is trial %d", cause, n)
			trial.report()
			return
		}
		t.Logf("it failed while %s, and is checked again", cause)
	}
}

// blame says what stood still during a trial: this process, or the store, whose slowest call that should have returned
// at once took so long (see prompt). It returns an empty text if the trial counts. A call also takes long because the
// process that waits for it stands still.
func blame(process, store time.Duration) string {
	switch {
	case max(process, store) < tolerable:
		return ""
	case process >= tolerable && store-process < tolerable:
		return fmt.Sprintf("this process stood still for %v", process.Round(time.Millisecond))
	default:
		return fmt.Sprintf("the store stood still (a call took %v, this process stood still for no more than %v)",
			store.Round(time.Millisecond), process.Round(time.Millisecond))
	}
}

// watch measures the longest stall of this process until stop is called. It is a variable because a test cannot make a
// machine stall.
var watch = func() (stop func() time.Duration) {
	const step = 10 * time.Millisecond
	end, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		tick := time.NewTimer(step)
		defer tick.Stop()
		most := time.Duration(0)
		for last, over := time.Now(), false; !over; {
			select {
			case <-tick.C:
				tick.Reset(step)
			case <-end:
				over = true
			}
			now := time.Now()
			most = max(most, now.Sub(last)-step)
			last = now
		}
		longest <- most
	}()
	return func() time.Duration {
		close(end)
		return <-longest
	}
}

// trial is a testing.TB that records log lines and failures, so that a trial can be discarded. The embedded testing.TB
// provides TempDir, Setenv and the unexported method of testing.TB.
type trial struct {
	testing.TB
	name   string
	ctx    context.Context
	cancel context.CancelFunc

	mu              sync.Mutex
	failed, skipped bool
	slowest         time.Duration // see prompt
	notes           []note
	helpers         map[string]bool // names of functions
	cleanups        []func()
}

// prompt records the duration of a call to the store that began at start and should have returned at once.
func prompt(t testing.TB, start time.Time) {
	if r, ok := t.(*trial); ok {
		took := time.Since(start)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.slowest = max(r.slowest, took)
	}
}

type note struct{ where, text string }

func newTrial(t testing.TB) *trial {
	r := &trial{TB: t, name: t.Name(), helpers: map[string]bool{}}
	r.ctx, r.cancel = context.WithCancel(t.Context())
	return r
}

// run calls f and then the clean-up functions, each in its own goroutine, because they may call runtime.Goexit.
func (r *trial) run(f func()) {
	r.recovered(f)
	r.cancel()
	for {
		r.mu.Lock()
		if len(r.cleanups) == 0 {
			r.mu.Unlock()
			return
		}
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		r.mu.Unlock()
		r.recovered(last)
	}
}

func (r *trial) recovered(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				r.add(string(debug.Stack()), fmt.Sprintf("panic: %v", p))
				r.Fail()
			}
		}()
		f()
	}()
	<-done
}

// report passes the recorded lines and the result to the real testing.TB.
func (r *trial) report() {
	r.TB.Helper()
	r.mu.Lock()
	notes, failed, skipped := r.notes, r.failed, r.skipped
	r.mu.Unlock()
	outer, ok := r.TB.(*trial)
	for _, n := range notes {
		if ok {
			outer.add(n.where, n.text)
		} else {
			fmt.Fprintf(r.Output(), "%s: %s\n", n.where, n.text) // Log would print the position of this line
		}
	}
	switch {
	case failed:
		r.TB.FailNow()
	case skipped:
		r.TB.SkipNow()
	}
}

func (r *trial) add(where, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, note{where, strings.TrimSuffix(text, "\n")})
}

func (r *trial) note(text string) { r.add(r.where(), text) }

// where returns the position of the innermost caller that is not a helper, as package testing does.
func (r *trial) where() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var pcs [50]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for {
		f, more := frames.Next()
		if !more || !r.helpers[f.Function] && !strings.Contains(f.Function, ".(*trial).") {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
	}
}

func (r *trial) Helper() {
	var pc [1]uintptr
	runtime.Callers(2, pc[:])
	f, _ := runtime.CallersFrames(pc[:]).Next()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.helpers[f.Function] = true
}

func (r *trial) Name() string                 { return r.name }
func (r *trial) Context() context.Context     { return r.ctx }
func (r *trial) Log(args ...any)              { r.note(fmt.Sprintln(args...)) }
func (r *trial) Logf(f string, args ...any)   { r.note(fmt.Sprintf(f, args...)) }
func (r *trial) Error(args ...any)            { r.Log(args...); r.Fail() }
func (r *trial) Errorf(f string, args ...any) { r.Logf(f, args...); r.Fail() }
func (r *trial) Fatal(args ...any)            { r.Log(args...); r.FailNow() }
func (r *trial) Fatalf(f string, args ...any) { r.Logf(f, args...); r.FailNow() }
func (r *trial) Skip(args ...any)             { r.Log(args...); r.SkipNow() }
func (r *trial) Skipf(f string, args ...any)  { r.Logf(f, args...); r.SkipNow() }
func (r *trial) FailNow()                     { r.Fail(); runtime.Goexit() }

func (r *trial) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *trial) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *trial) SkipNow() {
	r.mu.Lock()
	r.skipped = true
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *trial) Skipped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.skipped
}

func (r *trial) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}
