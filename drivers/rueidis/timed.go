package rueidis

import (
	"context"
	"sync"
	"time"
)

// timed is a context that ends by its deadline, or when the call that it was for has returned. The client keeps to the
// deadline by itself while it has the connection for one caller; when it pipelines it asks for Done, and when it dials it
// derives contexts that may outlive the call.
//
// context.WithDeadline would do, and be a quarter of what a command costs in allocations while the client pipelines. A timed
// is used again unless somebody has been told that it has ended, or may still ask: a derived context.
type timed struct {
	context.Context // ends by its deadline alone

	mu      sync.Mutex
	end     time.Time
	running bool          // from the beginning of a call to its end
	done    chan struct{} // nil until somebody has asked for it
	timer   *time.Timer   // closes it
	err     error         // why it is closed
	derived bool
	heirs   map[*heir]struct{}
}

// heir is a context that was derived.
type heir struct{ ended func() }

// begin reports false if somebody has been told meanwhile that it has ended.
func (t *timed) begin(ctx context.Context, end time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return false
	}
	t.Context, t.end, t.running = ctx, end, true
	return true
}

// finish ends it, as the call has returned. It reports whether it can be used again.
func (t *timed) finish() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running = false
	if t.timer != nil {
		t.timer.Stop()
	}
	if len(t.heirs) > 0 {
		t.close(context.Canceled)
	}
	return t.err == nil && !t.derived
}

// close tells everybody. Call with mu held.
func (t *timed) close(why error) {
	if t.err != nil {
		return
	}
	t.err = why
	if t.done != nil {
		close(t.done)
	}
	for h := range t.heirs {
		go h.ended()
	}
	t.heirs = nil
}

func (t *timed) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running && !time.Now().Before(t.end) { // else it fired for an earlier call
		t.close(context.DeadlineExceeded)
	}
}

// Done is asked once by a client that pipelines.
func (t *timed) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done = make(chan struct{})
		if t.err != nil {
			close(t.done)
		}
	}
	switch {
	case !t.running:
		t.close(context.Canceled)
	case t.timer == nil:
		t.timer = time.AfterFunc(time.Until(t.end), t.expire)
	default:
		t.timer.Reset(time.Until(t.end))
	}
	return t.done
}

// Err is never nil when Done is closed: contexts that derive from this one panic otherwise.
func (t *timed) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.err != nil:
		return t.err
	case !t.running:
		return context.Canceled
	}
	return t.Context.Err()
}

// AfterFunc is what package context asks for when it derives a context, which spares it a goroutine and lets this one know.
func (t *timed) AfterFunc(f func()) (stop func() bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.derived = true
	if !t.running {
		t.close(context.Canceled)
	}
	if t.err != nil {
		go f()
		return func() bool { return false }
	}
	h := &heir{f}
	if t.heirs == nil {
		t.heirs = map[*heir]struct{}{}
	}
	t.heirs[h] = struct{}{}
	return func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		_, waiting := t.heirs[h]
		delete(t.heirs, h)
		return waiting
	}
}

// timeds are those that nobody uses. They are a driver's own, because those of tests in virtual time must not leave their
// bubble.
type timeds struct {
	mu    sync.Mutex
	spare []*timed
}

// maxSpare is how many are kept: more than calls are under way at a time.
const maxSpare = 64

func (s *timeds) begin(ctx context.Context, end time.Time) *timed {
	s.mu.Lock()
	var t *timed
	if last := len(s.spare) - 1; last >= 0 {
		t = s.spare[last]
		s.spare = s.spare[:last]
	}
	s.mu.Unlock()
	if t == nil || !t.begin(ctx, end) {
		t = new(timed)
		t.begin(ctx, end)
	}
	return t
}

func (s *timeds) finish(t *timed) {
	if !t.finish() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.spare) < maxSpare {
		s.spare = append(s.spare, t)
	}
}
