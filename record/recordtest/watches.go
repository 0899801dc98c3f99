package recordtest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker/record"
)

// hintLimit bounds how long a hint about a change takes.
var hintLimit = limit

// hints are those of a watch.
type hints struct {
	news  chan struct{} // has a value if there was a hint since the last one was awaited
	calls atomic.Int64
}

func (h *hints) changed() {
	h.calls.Add(1)
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// comes reports whether there is a hint in time.
func (h *hints) comes() bool {
	timer := time.NewTimer(hintLimit)
	defer timer.Stop()
	select {
	case <-h.news:
		return true
	case <-timer.C:
		return false
	}
}

func changesAreTold(t testing.TB, open opener) {
	cs := clients(t, open, 2)
	w, ok := cs[0].s.(record.Watcher)
	if !ok {
		return
	}
	begin := func() (*hints, func()) {
		t.Helper()
		h := &hints{news: make(chan struct{}, 1)}
		live, stop := w.Watch("k", h.changed)
		began := h.comes()
		switch live := live(); {
		case !began && live:
			t.Fatalf("Watch that learns of changes: expected a call of changed when it begins, seen none")
		case !began || !live:
			stop()
			t.Logf("the Store does not watch at the moment")
			return nil, nil
		}
		return h, stop
	}
	version, n := "", 0
	changes := func(h *hints) {
		t.Helper()
		for range 4 {
			select {
			case <-h.news: // about an earlier change
			default:
			}
			n++
			version = cs[n%2].writes("k", version, text("a", n))
			if !h.comes() {
				t.Fatalf("change %d, by client %d: expected a call of changed, seen none", n, n%2)
			}
		}
	}
	first, stop := begin()
	if first == nil {
		return
	}
	changes(first)
	stop()
	second, stop := begin()
	if second == nil {
		return
	}
	defer stop()
	before := first.calls.Load()
	changes(second)
	if more := first.calls.Load() - before; more > 1 {
		t.Errorf("a watch that was stopped: expected one more call of changed at most, seen %d", more)
	}
}
