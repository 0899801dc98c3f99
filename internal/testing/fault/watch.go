package fault

import (
	"strings"
	"testing"
	"time"
)

// hangLimit bounds Wait and WaitExecuted. It is much longer than a loopback needs, because tests under the race
// detector keep every core of a small machine busy. Only tests that fail take that long.
const hangLimit = 10 * time.Second

// Exchange is a request and its reply.
type Exchange struct {
	Request
	Seen time.Time
	// Answered is the time at which the reply was passed on to the client. It is zero if it was not. Reply is the first
	// line of the reply, such as ":1".
	Answered time.Time
	Reply    string
}

type record struct {
	Exchange
	executed bool
}

// verdict is a decision about a request, with the gate of that moment, which Release closes. A held reply waits for the
// same gate. With a later one, a Release between the request and its reply would have no effect on the reply.
type verdict struct {
	Request
	Action
	gate <-chan struct{}
}

// decide numbers a request, asks the handler and records the request, in this order. So a test that sees the request in
// the records can rely on Release to let it go.
func (p *Proxy) decide(conn int, args []string) verdict {
	p.deciding.Lock()
	defer p.deciding.Unlock()
	p.mu.Lock()
	v := verdict{Request: Request{Conn: conn, N: len(p.seen) + 1, Args: args}}
	handler := p.handler
	v.gate = p.gate // taken before the handler is called, so that the next Release applies even if it is replaced
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

// notify wakes the callers that wait for the records to change. The caller holds p.mu.
func (p *Proxy) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Requests returns all requests seen so far, in the order of their numbers.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	requests := make([]Request, len(p.seen))
	for i, r := range p.seen {
		requests[i] = r.Request
	}
	return requests
}

// Exchanges returns all requests seen so far, with their replies.
func (p *Proxy) Exchanges() []Exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	exchanges := make([]Exchange, len(p.seen))
	for i, r := range p.seen {
		exchanges[i] = r.Exchange
	}
	return exchanges
}

// Count returns the number of requests seen so far that match. A nil pred matches all.
func (p *Proxy) Count(pred func(Request) bool) int {
	n := 0
	for _, r := range p.Requests() {
		if pred == nil || pred(r) {
			n++
		}
	}
	return n
}

// Wait returns the first request that matches, as soon as it has been seen and decided about. It fails the test if no
// such request comes. Requests from before the call count. To wait for a later one, let pred compare [Request.N].
func (p *Proxy) Wait(tb testing.TB, pred func(Request) bool) Request {
	tb.Helper()
	return p.wait(tb, "seen", func(r record) bool { return pred(r.Request) })
}

// WaitExecuted is Wait for a request that the server has answered, whether or not the client gets the reply. A request
// behind a held reply on the same connection counts when that reply is released.
func (p *Proxy) WaitExecuted(tb testing.TB, pred func(Request) bool) Request {
	tb.Helper()
	return p.wait(tb, "executed", func(r record) bool { return r.executed && pred(r.Request) })
}

func (p *Proxy) wait(tb testing.TB, what string, match func(record) bool) Request {
	tb.Helper()
	timeout := time.NewTimer(p.hangLimit)
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
			tb.Fatalf("fault: no matching request %s within %v; all requests:%s", what, p.hangLimit, list(seen))
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
