package telemetry_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/tracing"
)

// stepScenarios are like scenarios, for calls that acquire several locks.
var stepScenarios = []scenario{
	{"several locks", func(r *recorder, _ *store, l locker.Locker) {
		lease := must(locker.LockAll(r.request(), l, []string{key + "a", key + "b"}))
		time.Sleep(time.Second)
		_ = lease.Extend(r.request())
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 keys=2 operation=trylockmany outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.extend 1s-1s in request of locker.lock
			operation=extend outcome=extended
		locker.extend 1s-1s in request of locker.lock
			operation=extend outcome=extended
		locker.unlock 1s-1s in request of locker.lock
			held=1 operation=unlock outcome=unlocked remaining=9.898 renewals.failed=0 renewals=0
		locker.unlock 1s-1s in request of locker.lock
			held=1 operation=unlock outcome=unlocked remaining=9.898 renewals.failed=0 renewals=0
	`, `
		lease.active {} 0
		lease.hold.duration {outcome=unlocked} 2: 2
		lease.remaining {} 2: 19.8
		lock.acquire.duration {operation=trylockmany outcome=acquired} 1: 0
		lock.attempts {operation=trylockmany outcome=acquired} 1: 1
	`},
	{"several locks, one held", func(r *recorder, _ *store, l locker.Locker) {
		held := must(l.TryLock(r.request(), key+"b"))
		_, _ = locker.TryLockAll(r.request(), l, []string{key + "a", key + "b"})
		_ = held.Unlock(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=trylock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.lock 0s-0s in request
			attempts=1 holder=web-7 keys=2 operation=trylockmany outcome=held
			0s attempt: duration=0 outcome=held
		locker.unlock 0s-0s in request of locker.lock
			held=0 operation=unlock outcome=unlocked remaining=9.898 renewals.failed=0 renewals=0
	`, `
		lease.active {} 0
		lease.hold.duration {outcome=unlocked} 1: 0
		lease.remaining {} 1: 9.898
		lock.acquire.duration {operation=trylock outcome=acquired} 1: 0
		lock.acquire.duration {operation=trylockmany outcome=held} 1: 0
		lock.attempts {operation=trylock outcome=acquired} 1: 1
		lock.attempts {operation=trylockmany outcome=held} 1: 1
		lock.contentions {operation=trylockmany} 1
	`},
	{"several locks, one lost", func(r *recorder, s *store, l locker.Locker) {
		lease := must(locker.LockAll(r.request(), l, []string{key + "a", key + "b"}))
		time.Sleep(time.Second)
		must(s.ForceRelease(r.request(), key+"b", ""))
		<-lease.Done()
		time.Sleep(time.Second)
	}, `
		locker.lock 0s-0s in request
			attempts=1 keys=2 operation=trylockmany outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.lost 3.333333333s-3.333333333s of locker.lock Error: lock lost: gone
			error.type=lost held=3.333333333 lost.reason=gone
		locker.lost 4.333333333s-4.333333333s of locker.lock Error: lock lost: closed
			error.type=lost held=4.333333333 lost.reason=closed
	`, `
		lease.active {} 0
		lease.hold.duration {lost.reason=closed outcome=lost} 1: 4.333
		lease.hold.duration {lost.reason=gone outcome=lost} 1: 3.333
		lease.lost {lost.reason=closed} 1
		lease.lost {lost.reason=gone} 1
		lease.renewals {outcome=lost} 1
		lease.renewals {outcome=renewed} 1
		lock.acquire.duration {operation=trylockmany outcome=acquired} 1: 0
		lock.attempts {operation=trylockmany outcome=acquired} 1: 1
	`},
	{"several locks, store down", func(r *recorder, s *store, l locker.Locker) {
		s.fail("acquire many")
		_, _ = locker.TryLockAll(r.request(), l, []string{key + "a", key + "b"})
	}, `
		locker.lock 0s-0s in request Error: lock store unavailable: connection refused
			attempts=1 error.type=unavailable keys=2 operation=trylockmany outcome=error
			0s attempt: duration=0 error.type=unavailable outcome=error
	`, `
		lock.acquire.duration {error.type=unavailable operation=trylockmany outcome=error} 1: 0
		lock.attempts {error.type=unavailable operation=trylockmany outcome=error} 1: 1
	`},
}

func TestStepsAreRecorded(t *testing.T) { recorded(t, stepScenarios) }

// unable is a backend that could acquire several locks in one step, but not these.
type unable struct{ *memory.Backend }

func (unable) AcquireMany(context.Context, []backend.Request, backend.Choice) ([]*backend.Grant, error) {
	return nil, errors.ErrUnsupported
}

// If the locks are acquired one after the other, each has its span. The step that was tried has one if the Locker may
// be able to make it, and is not measured.
func TestLocksOneAfterTheOtherAreRecorded(t *testing.T) {
	for name, tt := range map[string]struct {
		wrap func(locker.Locker) locker.Locker
		want []string
	}{
		"hidden": {func(l locker.Locker) locker.Locker { return struct{ locker.Locker }{l} },
			[]string{"lock acquired", "lock acquired"}},
		"not possible": {func(l locker.Locker) locker.Locker { return l },
			[]string{"trylockmany unsupported", "lock acquired", "lock acquired"}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				r := newRecorder(t)
				c := locker.NewClient(unable{memory.NewBackend()})
				defer c.Close()
				lease, err := locker.LockAll(t.Context(), r.wrap(tt.wrap(c)), []string{"a", "b"})
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, s := range r.spans.GetSpans() {
					words := map[string]string{}
					for _, a := range s.Attributes {
						words[string(a.Key)] = a.Value.Emit()
					}
					got = append(got, words["locker.operation"]+" "+words["locker.outcome"])
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("recorded: %q, want %q", got, tt.want)
				}
				if strings.Contains(r.figures(), "trylockmany") {
					t.Error("a step that did not happen is measured")
				}
				_ = lease.Unlock(t.Context())
			})
		})
	}
}

// The key is that of all locks on the span of the call, and that of its lock on each later span.
func TestKeysOfAStep(t *testing.T) {
	r := newRecorder(t)
	c := memory.New()
	defer c.Close()
	class := func(key string) string { return key[:1] }
	l := r.wrap(c, tracing.WithKey(tracing.Full), tracing.WithKeyClass(class))
	for _, keys := range [][]string{{"a1", "a2"}, {"a1", "b1"}} {
		lease, err := locker.LockAll(t.Context(), l, keys)
		if err != nil {
			t.Fatal(err)
		}
		_ = lease.Unlock(t.Context())
	}
	var got []string
	for _, s := range r.spans.GetSpans() {
		text := strings.TrimPrefix(s.Name, "locker.")
		for _, word := range strings.Fields(list(s.Attributes)) {
			if strings.HasPrefix(word, "key") {
				text += " " + word
			}
		}
		got = append(got, text)
	}
	slices.Sort(got)
	want := []string{
		"lock key.class=a key=a1,a2 keys=2", "lock key=a1,b1 keys=2",
		"unlock key.class=a key=a1", "unlock key.class=a key=a1", "unlock key.class=a key=a2", "unlock key.class=b key=b1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded: %q, want %q", got, want)
	}
}
