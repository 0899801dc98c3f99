package conformance

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// verdict is what a recorder heard about one property.
type verdict struct {
	failed, skipped bool
	log             string
}

// record runs each property against h as run does, but keeps the verdicts to itself, by name of the property: a test of
// a suite wants a broken implementation to fail.
func record[H any](t testing.TB, h H, properties []property[H]) map[string]verdict {
	t.Helper()
	recorders := make([]*recorder, len(properties))
	var wg sync.WaitGroup
	for i, p := range properties {
		r := &recorder{TB: t, name: t.Name() + "/" + p.name}
		r.ctx, r.cancel = context.WithCancel(t.Context())
		recorders[i] = r
		wg.Go(func() { r.run(func() { p.verify(r, h) }) })
	}
	wg.Wait()
	verdicts := map[string]verdict{}
	for i, p := range properties {
		verdicts[p.name] = recorders[i].verdict()
	}
	return verdicts
}

// failures lists the properties that failed.
func failures(verdicts map[string]verdict) map[string]string {
	failed := map[string]string{}
	for name, v := range verdicts {
		if v.failed {
			failed[name] = v.log
		}
	}
	return failed
}

// recorder is a testing.TB that notes instead of reporting. The real one inside serves what a note cannot replace:
// TempDir, Setenv and the unexported method that keeps everybody from implementing testing.TB.
type recorder struct {
	testing.TB
	name   string
	ctx    context.Context
	cancel context.CancelFunc

	mu              sync.Mutex
	failed, skipped bool
	lines           []string
	cleanups        []func()
}

// run calls f, then the clean-up functions, each where runtime.Goexit can do no harm.
func (r *recorder) run(f func()) {
	r.guard(f)
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
		r.guard(last)
	}
}

func (r *recorder) guard(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v", p)
			}
		}()
		f()
	}()
	<-done
}

// verdict takes the lock, for a broken implementation may keep a goroutine of a check busy beyond its end.
func (r *recorder) verdict() verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	return verdict{r.failed, r.skipped, strings.Join(r.lines, "\n")}
}

func (r *recorder) note(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, strings.TrimSuffix(line, "\n"))
}

func (r *recorder) Helper()                      {}
func (r *recorder) Name() string                 { return r.name }
func (r *recorder) Context() context.Context     { return r.ctx }
func (r *recorder) Log(args ...any)              { r.note(fmt.Sprintln(args...)) }
func (r *recorder) Logf(f string, args ...any)   { r.note(fmt.Sprintf(f, args...)) }
func (r *recorder) Error(args ...any)            { r.Log(args...); r.Fail() }
func (r *recorder) Errorf(f string, args ...any) { r.Logf(f, args...); r.Fail() }
func (r *recorder) Fatal(args ...any)            { r.Log(args...); r.FailNow() }
func (r *recorder) Fatalf(f string, args ...any) { r.Logf(f, args...); r.FailNow() }
func (r *recorder) Skip(args ...any)             { r.Log(args...); r.SkipNow() }
func (r *recorder) Skipf(f string, args ...any)  { r.Logf(f, args...); r.SkipNow() }
func (r *recorder) FailNow()                     { r.Fail(); runtime.Goexit() }

func (r *recorder) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) SkipNow() {
	r.mu.Lock()
	r.skipped = true
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *recorder) Skipped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.skipped
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}
