package locker

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// gate lets one caller per key through at a time, in the order of their arrival. Of all the goroutines of a process that
// wait for a lock, only the one that is through asks the store: a thousand of them cost it no more than one does.
//
// Whoever is through leaves when it has acquired the lock, not when it has released it, so that the next one is waiting at
// the store by then.
type gate struct {
	mu    sync.Mutex
	lines map[string]*line // by key, as long as somebody is through
}

// line is those who want one key.
type line struct {
	gate    *gate
	key     string
	waiting list.List // of chan struct{}, closed when it is that caller's turn
	held    error     // what the one who is through was told last, if that was that the lock is held
	fault   error     // of the last contact with the store of the caller that is through; nil: the store answered
	faulty  time.Time // when the first of the contacts began that have failed since the last answer
	// announced says that the trace of the caller that is through knows that the caller waits.
	announced bool
	trace     *Trace                           // of the caller that is through
	waits     func(remaining time.Duration)    // saw, with it: for Request.Waiting
	fails     func(since time.Time, err error) // failing, for Request.Failing
}

var errBehind = errors.New("other callers of this client ask for the lock before this one")

// enter returns when it is the caller's turn, who then must leave. It fails when ctx ends or closing is closed; waits is
// called if it has to wait.
func (g *gate) enter(ctx context.Context, closing <-chan struct{}, key string, waits func()) (*line, error) {
	g.mu.Lock()
	l := g.lines[key]
	if l == nil {
		if g.lines == nil {
			g.lines = make(map[string]*line)
		}
		l = newLine(g, key)
		g.lines[key] = l
		g.mu.Unlock()
		return l, nil
	}
	turn := make(chan struct{})
	place := l.waiting.PushBack(turn)
	g.mu.Unlock()
	waits()
	var err error
	select {
	case <-turn:
		return l, nil
	case <-closing:
		err = ErrClosed
	case <-ctx.Done():
		err = errBehind
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-turn: // both at once: the turn is not wanted any more
		l.next()
	default:
		l.waiting.Remove(place)
	}
	if last := l.last(); last != nil && err != ErrClosed { //nolint:errorlint // set above
		err = last
	}
	return nil, err
}

func newLine(g *gate, key string) *line {
	l := &line{gate: g, key: key}
	l.waits = func(remaining time.Duration) { l.saw(&HeldError{remaining}, l.trace) }
	l.fails = l.failing
	return l
}

// leave lets the next one through.
func (l *line) leave(acquired bool) {
	l.gate.mu.Lock()
	defer l.gate.mu.Unlock()
	if acquired {
		l.held, l.fault = ErrHeld, nil // by this client
	}
	l.next()
}

// next is called with the gate's mutex held.
func (l *line) next() {
	first := l.waiting.Front()
	if first == nil {
		delete(l.gate.lines, l.key)
		return
	}
	close(l.waiting.Remove(first).(chan struct{}))
}

// saw is for the one who is through and has learnt that the lock is held: those who wait are to know, and its own trace, if
// it does not yet.
func (l *line) saw(held error, trace *Trace) {
	if !l.announced {
		l.announced = true
		trace.waiting(remainingOf(held))
	}
	l.gate.mu.Lock()
	defer l.gate.mu.Unlock()
	l.held, l.fault = held, nil
}

// failing is for the one who is through, and tells how its last contact with the store failed, which began at since, or,
// with nil, that it was answered.
func (l *line) failing(since time.Time, err error) {
	l.gate.mu.Lock()
	defer l.gate.mu.Unlock()
	if l.fault == nil {
		l.faulty = since
	}
	l.fault = err
}

// last is what the last contact with the store came to; nil: there was none. Call with the gate's mutex held.
func (l *line) last() error {
	if l.fault != nil {
		return l.fault
	}
	return l.held
}

// seen is last, for the one who is through. since is how long contacts have been failing.
func (l *line) seen() (last error, held bool, since time.Duration) {
	l.gate.mu.Lock()
	defer l.gate.mu.Unlock()
	if l.fault != nil {
		since = time.Since(l.faulty)
	}
	return l.last(), l.held != nil, since
}
