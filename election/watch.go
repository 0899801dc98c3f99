package election

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

const (
	// maxPoll is the longest time between two looks at the store.
	maxPoll = 5 * time.Second
	// minPoll is the shortest, also when the store tells of many changes.
	minPoll = 20 * time.Millisecond
	// absentPoll is the time between two looks while nobody leads, or the store cannot be asked.
	absentPoll = time.Second
)

// observed is what a watch looks at: an election in a store.
type observed struct {
	inspector inspect.Inspector
	key       string
}

// watches has the watches of this process, for as long as somebody needs them. All observers of an election share one.
var watches = struct {
	sync.Mutex
	at map[observed]*watch
}{at: map[observed]*watch{}}

// watch observes one election. When the last observer leaves, it ends the watch's goroutine and waits for its end.
type watch struct {
	observed
	shared    bool // it is in watches
	observers int  // guarded by watches
	cancel    context.CancelFunc
	ended     chan struct{}
	again     chan struct{} // has room for one: look as soon as minPoll allows

	mu      sync.Mutex
	now     sight
	changed chan struct{} // closed when now changes
}

// sight is what a watch has seen last.
type sight struct {
	leader  Leader
	err     error
	final   bool // there will be no other
	version int  // 0 before the first look
}

var errNoInspector = fmt.Errorf("election: the Locker cannot show who holds its locks: %w", errors.ErrUnsupported)

// join returns the watch of key, which the caller must leave.
func join(l locker.Locker, key string) *watch {
	inspector, ok := locker.As[inspect.Inspector](l)
	if !ok {
		w := &watch{now: sight{err: errNoInspector, final: true, version: 1}}
		w.cancel, w.ended = func() {}, make(chan struct{})
		close(w.ended)
		return w
	}
	at := observed{inspector, key}
	shared := reflect.ValueOf(inspector).Comparable()
	watches.Lock()
	defer watches.Unlock()
	var w *watch
	if shared {
		w = watches.at[at]
	}
	if w == nil {
		var ctx context.Context
		w = &watch{observed: at, shared: shared, ended: make(chan struct{}), again: make(chan struct{}, 1)}
		w.changed = make(chan struct{})
		ctx, w.cancel = context.WithCancel(context.Background())
		if shared {
			watches.at[at] = w
		}
		told, _ := locker.As[inspect.Watcher](l)
		go w.poll(ctx, told)
	}
	w.observers++
	return w
}

func (w *watch) leave() {
	watches.Lock()
	w.observers--
	last := w.observers <= 0
	if last && w.shared {
		delete(watches.at, w.observed)
	}
	watches.Unlock()
	if last {
		w.cancel()
		<-w.ended
	}
}

// pollAgain makes the watch of key look again, if there is one, because the leader has changed.
func pollAgain(l locker.Locker, key string) {
	inspector, ok := locker.As[inspect.Inspector](l)
	if !ok || !reflect.ValueOf(inspector).Comparable() {
		return
	}
	watches.Lock()
	defer watches.Unlock()
	if w := watches.at[observed{inspector, key}]; w != nil {
		w.hint()
	}
}

// hint makes poll look at once, or when minPoll has passed since the last look. It does not block.
func (w *watch) hint() {
	select {
	case w.again <- struct{}{}:
	default:
	}
}

// poll looks at the store until ctx ends.
func (w *watch) poll(ctx context.Context, told inspect.Watcher) {
	defer close(w.ended)
	tells := false
	if told != nil {
		stop, err := told.Watch(w.key, w.hint)
		if tells = err == nil; tells {
			defer stop()
		}
	}
	t := time.NewTimer(0)
	defer t.Stop()
	for usual := absentPoll; ; {
		select {
		case <-ctx.Done():
			return
		case <-w.again:
		case <-t.C:
		}
		seen, err := w.inspector.Inspect(ctx, w.key)
		if ctx.Err() != nil || w.saw(seen, err) {
			return
		}
		pause := min(usual, absentPoll)
		switch {
		case err != nil || seen.State != inspect.Held || seen.Remaining <= 0:
		case tells: // it does not tell of locks that expire
			pause = seen.Remaining
		default:
			// A leader that renews has two thirds of the TTL left, or more. So this is about a third of the TTL.
			usual = seen.Remaining * 2 / 5
			pause = usual
		}
		t.Reset(max(minPoll, min(pause, maxPoll)))
		select {
		case <-ctx.Done():
			return
		case <-time.After(minPoll): // one look answers all hints that came meanwhile
		}
	}
}

// saw records what the store has answered, and reports whether there is no point in looking again.
func (w *watch) saw(seen inspect.Inspection, err error) (final bool) {
	next := sight{err: err}
	switch {
	case err != nil:
		next.final = useless(err)
	case seen.State == inspect.Foreign:
		next.err, next.final = &locker.Error{Op: "inspect", Key: w.key, Err: locker.ErrForeignKey}, true
	case seen.State == inspect.Held:
		next.leader = Leader{seen.Label, seen.Fence}
		if next.leader == (Leader{}) {
			next.leader.Identity = seen.Owner
		}
	case seen.State == inspect.Split: // an election on several nodes is under way
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now.version > 0 && w.now.leader == next.leader && (w.now.err == nil) == (next.err == nil) && !next.final {
		return false
	}
	next.version = w.now.version + 1
	w.now = next
	close(w.changed)
	w.changed = make(chan struct{})
	return next.final
}

// latest returns what was seen last, and a channel that is closed when that changes.
func (w *watch) latest() (sight, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, w.changed
}
