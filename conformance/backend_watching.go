package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

// watchedLock is a lock that a Backend watches.
type watchedLock struct {
	calls atomic.Int32 // of changed
	stop  func()
}

// watching makes two Backends, the first of which watches the lock k, or skips the property.
func watching(t testing.TB, h Harness) (w *watchedLock, bs []locker.Backend, s Store) {
	t.Helper()
	bs, s = backends(t, h, 2)
	b, ok := bs[0].(inspect.Watcher)
	if !ok {
		t.Skip("the Backend does not implement inspect.Watcher: observers look now and then")
	}
	w = new(watchedLock)
	stop, err := b.Watch("k", func() { w.calls.Add(1) })
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		t.Skip("the Backend does not tell of changes: observers look now and then")
	case err != nil:
		t.Fatalf("Watch: expected no error, seen %v", err)
	}
	w.stop = stop
	if i, ok := bs[0].(inspect.Inspector); ok { // what changes after this is told of
		seenOf(t, i, "k", inspect.Free)
	}
	return w, bs, s
}

// tells makes a change and waits for a call of changed.
func (w *watchedLock) tells(t testing.TB, what string, change func()) {
	t.Helper()
	before := w.calls.Load()
	change()
	if !until(recovery, func() bool { return w.calls.Load() > before }) {
		t.Errorf("%s: expected a call of changed within %v, seen none", what, recovery)
	}
}

func watchTells(t testing.TB, h Harness) {
	w, bs, _ := watching(t, h)
	var o *holding
	for i := range 4 {
		w.tells(t, "Acquire", func() { o = grab(t, bs[i%2], "k", longTTL) })
		w.tells(t, "Release", func() { o.must(t) })
	}
	w.tells(t, "Acquire", func() { o = grab(t, bs[1], "k", longTTL) })
	w.tells(t, "Release with Keep", func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := o.releaseKeeping(ctx, h.short()); err != nil {
			t.Errorf("Release with Keep: expected no error, seen %v", err)
		}
	})
	w.tells(t, "Acquire of a lock that was kept", func() { o, _ = grabWhenFree(t, bs[1], "k", longTTL, patience) })
	if i, ok := bs[1].(inspect.Inspector); ok {
		w.tells(t, "ForceRelease", func() {
			if _, err := i.ForceRelease(t.Context(), "k", ""); err != nil {
				t.Errorf("ForceRelease: expected no error, seen %v", err)
			}
		})
	} else {
		o.must(t)
	}
	w.stop()
	before := w.calls.Load()
	for range 5 {
		o := grab(t, bs[0], "k", longTTL)
		time.Sleep(stall)
		o.must(t)
		time.Sleep(stall)
	}
	if n := w.calls.Load() - before; n > 1 {
		t.Errorf("expected at most one call of changed after stop, seen %d", n)
	}
}

func watchOutlivesOutages(t testing.TB, h Harness) {
	w, bs, s := watching(t, h)
	defer w.stop()
	if s.Down == nil {
		t.Skip("the harness has no Down")
	}
	for range 2 {
		mend := failing(t, s.Down)
		time.Sleep(stall)
		mend()
		var o *holding
		w.tells(t, "Acquire after an outage", func() { o, _ = grabWhenFree(t, bs[1], "k", longTTL, recovery) })
		w.tells(t, "Release after an outage", func() { o.must(t) })
	}
}
