package fault

import (
	"strings"
	"testing"
	"time"
)

// patience bounds Wait and WaitExecuted. It is far more than a loopback needs, since a race-enabled run on a small
// machine keeps every core busy, and it only costs time in tests that fail.
const patience = 10 * time.Second

// Exchange is a request with what became of it.
type Exchange struct {
	Request
	Seen time.Time
	// Answered is when the reply was passed on to the client, zero if it was not. Reply is its first line, as ":1".
	Answered time.Time
	Reply    string
}

type record struct {
	Exchange
	executed bool
}

// verdict is a decision about a request, with the gate that was closed at that moment. The gate of a held reply dates
// from the request as well: otherwise a Release between request and reply would be missed.
type verdict struct {
	Request
	Action
	gate <-chan struct{}
}

// decide numbers a request, asks the handler and records it, in this order: who sees the request in the records can
// rely on Release reaching it.
func (p *Proxy) decide(conn int, args []string) verdict {
	p.deciding.Lock()
	defer p.deciding.Unlock()
	p.mu.Lock()
	v := verdict{Request: Request{Conn: conn, N: len(p.seen) + 1, Args: args}}
	handler := p.handler
	v.gate = p.gate // what is held by a handler that has been replaced since must not miss the Release after that
	p.mu.Unlock()
	if handler != nil {
		v.Action = handler(v.Request)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, record{Exchange: Exchange{Request: v.Request, Seen: time.Now()}})
	p.notify()
	return v
}

func (p *Proxy) executed(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[n-1].executed = true
	p.notify()
}

func (p *Proxy) answered(n int, f frame) {
	line, _, _ := strings.Cut(string(f), "\r\n")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[n-1].Answered, p.seen[n-1].Reply = time.Now(), line
}

// notify wakes whoever waits for the records to change. p.mu is held.
func (p *Proxy) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Requests returns the requests seen so far, whatever became of them, in the order of their numbers.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	requests := make([]Request, len(p.seen))
	for i, r := range p.seen {
		requests[i] = r.Request
	}
	return requests
}

// Exchanges is Requests with what is known of their outcomes.
func (p *Proxy) Exchanges() []Exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	exchanges := make([]Exchange, len(p.seen))
	for i, r := range p.seen {
		exchanges[i] = r.Exchange
	}
	return exchanges
}

// Count returns how many of the requests seen so far match; a nil pred matches all.
func (p *Proxy) Count(pred func(Request) bool) int {
	n := 0
	for _, r := range p.Requests() {
		if pred == nil || pred(r) {
			n++
		}
	}
	return n
}

// Wait returns the first request that matches, as soon as it has been seen and decided about. It fails the test if none
// comes. Requests from before the call count; to wait for a further one, let pred look at [Request.N].
func (p *Proxy) Wait(tb testing.TB, pred func(Request) bool) Request {
	tb.Helper()
	return p.wait(tb, "seen", func(r record) bool { return pred(r.Request) })
}

// WaitExecuted is Wait for a request that the server has answered, whether or not the client is told. One that is
// executed behind a held reply of its connection counts when that is released.
func (p *Proxy) WaitExecuted(tb testing.TB, pred func(Request) bool) Request {
	tb.Helper()
	return p.wait(tb, "executed", func(r record) bool { return r.executed && pred(r.Request) })
}

func (p *Proxy) wait(tb testing.TB, what string, match func(record) bool) Request {
	tb.Helper()
	timeout := time.NewTimer(p.patience)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		seen, changed := append([]record(nil), p.seen...), p.changed
		p.mu.Unlock()
		for _, r := range seen {
			if match(r) {
				return r.Request
			}
		}
		select {
		case <-changed:
		case <-timeout.C:
			tb.Fatalf("fault: no matching request %s within %v; all requests:%s", what, p.patience, list(seen))
			return Request{}
		}
	}
}

func list(seen []record) string {
	if len(seen) == 0 {
		return " none"
	}
	var b strings.Builder
	for _, r := range seen {
		b.WriteString("\n\t" + r.String())
		if r.executed {
			b.WriteString(" (executed)")
		}
	}
	return b.String()
}
