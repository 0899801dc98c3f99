package cli

import (
	"fmt"
	"sync"
)

// progress is a status line on the terminal. Without a terminal it prints nothing. Its methods may be called
// concurrently.
type progress struct {
	app *app
	on  bool
	mu  sync.Mutex
}

func (a *app) progress() *progress {
	return &progress{app: a, on: isTerminal(a.stderr) && !a.quiet && !a.json && a.getenv("TERM") != "dumb"}
}

func (p *progress) show(format string, args ...any) {
	if p.on {
		p.mu.Lock()
		defer p.mu.Unlock()
		fmt.Fprint(p.app.stderr, "\r\x1b[K"+cut(fmt.Sprintf(format, args...)+" …", columns(p.app.stderr)))
	}
}

// done removes the line.
func (p *progress) done() {
	if p.on {
		p.mu.Lock()
		defer p.mu.Unlock()
		fmt.Fprint(p.app.stderr, "\r\x1b[K")
	}
}
