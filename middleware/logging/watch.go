package logging

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

const (
	// settled is the time without failures after which a store or a node is up again.
	settled = 5 * time.Second

	// maxNodes is how many nodes are watched. It bounds the memory; no backend has as many.
	maxNodes = 64
)

// watch is the state of a node, or of the store as a whole. The zero value means that it is up.
type watch struct {
	down atomic.Bool // the other fields are used only if it is true, or becomes true

	mu           sync.Mutex
	since, until time.Time // the first and the last failure
}

// failed records a failure. It reports whether this is the first failure of an outage.
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

// answered records an answer. It reports whether the answer ends an outage, and how long the outage was.
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

// outcome is what an error says about the store.
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

// storeSaid records what err says about the store. err is the result of a call with ctx, and may be nil.
func (l *logged) storeSaid(ctx context.Context, err error) {
	switch outcomeOf(err) {
	case up:
		if outage, over := l.store.answered(); over && l.enabled(ctx, slog.LevelInfo) {
			l.log(ctx, slog.LevelInfo, "lock store answers again", slog.Duration("down", outage))
		}
	case down:
		deadline, bounded := ctx.Deadline()
		own := ctx.Err() != nil || bounded && !time.Now().Before(deadline) // the timer of ctx may fire late
		if !own && l.store.failed() && l.enabled(ctx, slog.LevelWarn) {
			l.log(ctx, slog.LevelWarn, "lock store unavailable", errAttr(err))
		}
	}
}

// voted is the hook for the answers of single nodes.
func (l *logged) voted(v lockertrace.Vote) {
	if v.Pending { // if the node does not answer, another vote follows
		return
	}
	said := outcomeOf(v.Err)
	w := l.node(v.Node, said == down)
	if w == nil {
		return
	}
	ctx := context.Background() // the state of a node has nothing to do with the call that noticed it
	switch said {
	case up:
		if outage, over := w.answered(); over && l.enabled(ctx, slog.LevelInfo) {
			l.log(ctx, slog.LevelInfo, "lock node answers again",
				slog.String("node", v.Node), slog.Duration("down", outage))
		}
	case down:
		if w.failed() && l.enabled(ctx, slog.LevelWarn) {
			l.log(ctx, slog.LevelWarn, "lock node unavailable", slog.String("node", v.Node), errAttr(v.Err))
		}
	}
}

// node returns the watch of a node. For a node that has never failed, it returns nil, or a new watch if create is true.
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
