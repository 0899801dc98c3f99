// Package history keeps the audit logs of the clients of a trial, and judges them in two ways: by the rules of
// internal/judge, which users have, too, and by a model that looks for an order in which all operations are legal.
// Simulated and real runs are judged in the same way.
package history

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/judge"
	"github.com/golocker/locker/middleware/audit"
)

// Violation says where a history breaks a rule.
type Violation = judge.Finding

// Op is the kind of an event: a call, or something that happened to a lease.
type Op string

// The operations. Call and Return of the last two are the same time.
const (
	Lock    Op = "lock"
	TryLock Op = "trylock"
	Extend  Op = "extend"
	Verify  Op = "verify"
	Unlock  Op = "unlock"
	Until   Op = "until" // a renewal
	Done    Op = "done"  // the lease has ended without Unlock
)

// The outcomes that a line has not: how a lease was lost.
const (
	Lost  audit.Outcome = "lost"
	Taken audit.Outcome = "taken over" // the store has reported another owner
)

// Event is one operation. Its times are those since the history began.
type Event struct {
	Client       int
	Op           Op
	Key          string
	Grant        string
	Fence        uint64
	Call, Return time.Duration
	Until        time.Duration // the end of the lease that it reported at Return
	Outcome      audit.Outcome
}

// History has the logs of clients. It is safe for concurrent use.
type History struct {
	start time.Time

	mu      sync.Mutex
	clients []*client
	logs    *judge.Logs // of all; nil until they are read
}

// client is a client and its log.
type client struct {
	id  int
	log *audit.Log // nil if it is one of another process

	mu    sync.Mutex
	lines bytes.Buffer
}

// Write implements io.Writer.
func (c *client) Write(lines []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lines.Write(lines)
}

// New returns an empty history that begins now.
func New() *History { return &History{start: time.Now()} }

// Now returns the time since the history began.
func (h *History) Now() time.Duration { return time.Since(h.start) }

// Client returns a Locker that calls l, with a log of its own as the client id.
func (h *History) Client(id int, l locker.Locker) locker.Locker {
	c := &client{id: id}
	c.log = audit.New(c)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients = append(h.clients, c)
	return locker.Wrap(l, c.log.Middleware("the trial's"))
}

// Add adds the lines of the client id in another process of this machine.
func (h *History) Add(id int, lines string) {
	c := &client{id: id}
	c.lines.WriteString(lines)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients = append(h.clients, c)
}

// Wait closes the logs. The Clients must have been closed.
func (h *History) Wait() {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all sync.WaitGroup
	for _, c := range h.clients {
		if c.log != nil {
			all.Go(func() { _ = c.log.Close() })
		}
	}
	all.Wait()
}

// Lines returns all lines. Wait must have been called, here and below.
func (h *History) Lines() string {
	var all strings.Builder
	for _, c := range h.clients {
		all.WriteString(c.lines.String())
	}
	return all.String()
}

// Only returns the history of the clients for which is returns true.
func (h *History) Only(is func(client int) bool) *History {
	only := &History{start: h.start}
	for _, c := range h.clients {
		if is(c.id) {
			only.Add(c.id, c.lines.String())
		}
	}
	return only
}

// read reads the logs, once. What cannot be read is a violation.
func (h *History) read() *judge.Logs {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.logs == nil {
		h.logs = judge.New()
		for _, c := range h.clients {
			_ = h.logs.Read(strconv.Itoa(c.id), bytes.NewReader(c.lines.Bytes()))
		}
	}
	return h.logs
}

// Check returns the violations of the rules. All clients have one clock.
func (h *History) Check(o judge.Options) (found []Violation) {
	o.Clocks = true
	logs := h.read()
	missing, open := logs.Gaps()
	if missing > 0 || open > 0 || logs.Unreadable > 0 {
		found = append(found, Violation{Rule: "LOG", Text: fmt.Sprintf(
			"%d gaps, %d logs without an end, %d lines that cannot be read", missing, open, logs.Unreadable)})
	}
	_, err := logs.Judge(o, func(f Violation) { found = append(found, f) })
	if err != nil {
		found = append(found, Violation{Rule: "LOG", Text: err.Error()})
	}
	return found
}

// Events returns the events in the order of their ends.
func (h *History) Events() (events []Event) {
	entries := h.read().Entries()
	for i := range entries {
		if e, ok := h.event(&entries[i]); ok {
			events = append(events, e)
		}
	}
	slices.SortStableFunc(events, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.Return, b.Return), cmp.Compare(a.Client, b.Client))
	})
	return events
}

func (h *History) event(l *judge.Entry) (e Event, ok bool) {
	e = Event{
		Key: l.Key, Grant: l.Grant, Fence: l.Fence, Call: l.Asked.Sub(h.start), Return: l.Answered.Sub(h.start),
		Outcome: l.Outcome,
	}
	e.Client, _ = strconv.Atoi(l.File)
	if !l.Until.IsZero() {
		e.Until = l.Until.Sub(h.start)
	}
	if l.Reason != "" && l.Outcome != audit.NotHeld {
		e.Outcome = Lost
		if judge.Taken(l.Reason) {
			e.Outcome = Taken
		}
	}
	switch l.Event {
	case audit.Acquired, audit.HandedOver, audit.Refused:
		if e.Op = Lock; l.Try {
			e.Op = TryLock
		}
	case audit.Extended:
		if e.Op = Extend; l.Auto {
			e.Op = Until
			return e, l.Outcome == audit.OK
		}
	case audit.Verified:
		e.Op = Verify
	case audit.Released:
		e.Op = Unlock
	case audit.Lost:
		e.Op = Done
	default:
		return e, false
	}
	return e, true
}

// Hash returns a hash of the history. Two histories with equal hashes are the same. Grants are random, so only the
// order of their first appearance counts.
func (h *History) Hash() uint64 {
	sum := fnv.New64a()
	grants := map[string]int{}
	for _, e := range h.Events() {
		if _, known := grants[e.Grant]; !known {
			grants[e.Grant] = len(grants)
		}
		_, _ = fmt.Fprintln(sum, e.Client, e.Op, e.Key, grants[e.Grant], e.Fence, int64(e.Call), int64(e.Return),
			int64(e.Until), e.Outcome)
	}
	return sum.Sum64()
}
