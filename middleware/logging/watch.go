package logging

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
)

const (
	// settled is for how long something must have answered without a failure to count as up again.
	settled = 5 * time.Second
	// maxNodes bounds the memory for the states of nodes; no backend has as many. Others are not watched.
	maxNodes = 64
)

// watch is whether a node, or the store as a whole, is up. The zero value is.
type watch struct {
	down atomic.Bool // what follows is looked at only when it is, or becomes so

	mu           sync.Mutex
	since, until time.Time // the first and the last failure
}

// failed notes a failure, and reports whether it is the first in a row.
func (w *watch) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.until = time.Now()
	if w.down.Load() {
		return false
	}
	w.since = w.until
	w.down.Store(true)
	return true
}

// answered notes an answer, and reports whether that ends an outage, and how long it was.
func (w *watch) answered() (outage time.Duration, over bool) {
	if !w.down.Load() {
		return 0, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.down.Load() || time.Since(w.until) < settled {
		return 0, false
	}
	w.down.Store(false)
	return w.until.Sub(w.since), true
}

// outcome is what an error says of the store.
type outcome int

const (
	nothing outcome = iota
	up
	down
)

func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return up
	case errors.Is(err, locker.ErrUnavailable), errors.Is(err, locker.ErrNoQuorum):
		return down
	case errors.Is(err, locker.ErrHeld), errors.Is(err, locker.ErrNotHeld), errors.Is(err, locker.ErrForeignKey):
		return up
	}
	return nothing
}

// storeSaid notes what err, of a call with ctx, says of the store.
func (l *logged) storeSaid(ctx context.Context, err error) {
	switch outcomeOf(err) {
	case up:
		if outage, over := l.store.answered(); over && l.enabled(ctx, slog.LevelInfo) {
			l.log(ctx, slog.LevelInfo, "lock store answers again", slog.Duration("down", outage))
		}
	case down:
		deadline, bounded := ctx.Deadline()
		own := ctx.Err() != nil || bounded && !time.Now().Before(deadline) // timers run late
		if !own && l.store.failed() && l.enabled(ctx, slog.LevelWarn) {
			l.log(ctx, slog.LevelWarn, "lock store unavailable", errAttr(err))
		}
	}
}

// voted is the hook for what single nodes say.
func (l *logged) voted(v locker.Vote) {
	if v.Pending { // others were quicker; if it does not answer at all, that is said later
		return
	}
	said := outcomeOf(v.Err)
	w := l.node(v.Node, said == down)
	if w == nil {
		return
	}
	ctx := context.Background() // whose call it was is chance
	switch said {
	case up:
		if outage, over := w.answered(); over && l.enabled(ctx, slog.LevelInfo) {
			l.log(ctx, slog.LevelInfo, "lock node answers again", slog.String("node", v.Node), slog.Duration("down", outage))
		}
	case down:
		if w.failed() && l.enabled(ctx, slog.LevelWarn) {
			l.log(ctx, slog.LevelWarn, "lock node unavailable", slog.String("node", v.Node), errAttr(v.Err))
		}
	}
}

// node returns the watch of the node of that name. One that never failed has none unless create is true.
func (l *logged) node(name string, create bool) *watch {
	if !create && !l.anyDown.Load() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.nodes[name]
	if w == nil && create && len(l.nodes) < maxNodes {
		if l.nodes == nil {
			l.nodes = make(map[string]*watch)
		}
		w = new(watch)
		l.nodes[name] = w
		l.anyDown.Store(true)
	}
	return w
}
