// Package doctor examines whether Redis servers are fit for locks. It examines each server and all servers together.
// Each check results in ok, warn or fail, with a reason and advice. The examination takes limited time, whatever the
// servers do.
package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/settings"
)

// Level is the severity of a finding. Warn also means that a check had no result.
type Level = settings.Level

// The results of a check.
const (
	OK   = settings.OK
	Warn = settings.Warn
	Fail = settings.Fail
)

// Finding is the result of one check.
type Finding struct {
	Node string `json:"node,omitempty"` // empty for checks of all servers together
	settings.Finding
}

// Report is the result of an examination.
type Report struct {
	Level    Level     `json:"level"` // the worst level of the findings
	Findings []Finding `json:"findings"`
}

// Deployment describes the servers to examine.
type Deployment struct {
	Redlock bool
	Prefix  string
	TTL     time.Duration // the usual TTL of locks
	Guard   time.Duration // the longest TTL of locks; 0: there is no restart guard
	// Replicas is how many replicas have to confirm a lock. With 0, none has to.
	Replicas int
	Timeout  time.Duration // of one exchange
	Budget   time.Duration // of one operation on a Redlock
	Nodes    []Node
}

// Node is one server. The driver stays open.
type Node struct {
	Name     string
	Username string // empty: the default user
	Driver   drivers.Driver
	Dial     drivers.Config // how to connect without the driver
}

const (
	// askLimit limits one exchange, unless the deployment's own timeout is shorter.
	askLimit = 3 * time.Second
	// nodeLimit limits the examination of one node, and crossLimit the examination of all nodes together after that.
	nodeLimit  = 20 * time.Second
	crossLimit = 5 * time.Second
)

// Examine runs all checks. The nodes are examined concurrently, so a hung node does not delay the others. If progress
// is not nil, it is called with the name of each node that is done; the calls do not overlap.
func Examine(ctx context.Context, d Deployment, progress func(node string)) Report {
	e := &examination{Deployment: d, id: rand.Text()[:12]}
	e.checkups = make([]*checkup, len(d.Nodes))
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i, n := range d.Nodes {
		p := &checkup{Node: n, e: e, index: i}
		e.checkups[i] = p
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, nodeLimit)
			defer cancel()
			p.examine(ctx)
			if progress != nil {
				mu.Lock()
				defer mu.Unlock()
				progress(n.Name)
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(ctx, crossLimit)
	defer cancel()
	e.together(ctx)
	r := Report{Level: OK}
	for _, p := range e.checkups {
		r.Findings = append(r.Findings, p.findings...)
	}
	r.Findings = append(r.Findings, e.findings...)
	for _, f := range r.Findings {
		if f.Level.Worse(r.Level) {
			r.Level = f.Level
		}
	}
	return r
}

// examination is one call of Examine.
type examination struct {
	Deployment
	id       string // part of the names of its probe keys
	checkups []*checkup
	findings []Finding
}

// checkup is one node under examination.
type checkup struct {
	Node
	e        *examination
	index    int
	findings []Finding

	reached   bool
	noPublish drivers.ServerError // the refusal of PUBLISH; empty: there was none
	settings  settings.Snapshot
	clock     settings.Clock // from the fastest answer; zero if there is none
}

func (p *checkup) examine(ctx context.Context) {
	if p.reached = p.reach(ctx); !p.reached {
		return
	}
	p.deployment()
	p.latency(ctx)
	p.readSettings(ctx)
	if len(p.settings.Info) > 0 {
		p.version()
		if p.mode() == "sentinel" {
			p.fail("role", "give the address of the Redis server that it monitors",
				"this is a sentinel, which keeps no keys")
			return
		}
		p.role()
	}
	use := settings.Use{Redlock: p.e.Redlock, TTL: p.e.TTL, Guard: p.e.Guard, Replicas: p.e.Replicas}
	for _, f := range settings.Check(p.settings, use) {
		p.findings = append(p.findings, Finding{p.Name, f})
	}
	p.unknown()
	if len(p.settings.Info) > 0 {
		p.uptime()
	}
	if p.rights(ctx) {
		p.locks(ctx)
		p.guard(ctx)
	}
}

func (p *checkup) ok(check, format string, args ...any) { p.add(check, OK, "", format, args...) }

func (p *checkup) warn(check, fix, format string, args ...any) {
	p.add(check, Warn, fix, format, args...)
}

func (p *checkup) fail(check, fix, format string, args ...any) {
	p.add(check, Fail, fix, format, args...)
}

func (p *checkup) add(check string, level Level, fix, format string, args ...any) {
	p.findings = append(p.findings, finding(p.Name, check, level, fix, format, args))
}

func (e *examination) add(check string, level Level, fix, format string, args ...any) {
	e.findings = append(e.findings, finding("", check, level, fix, format, args))
}

func finding(node, check string, level Level, fix, format string, args []any) Finding {
	return Finding{node, settings.Finding{Check: check, Level: level, Text: fmt.Sprintf(format, args...), Fix: fix}}
}

var errSilent = errors.New("no answer")

// ask sends commands and waits for the answers for a limited time, even if the client ignores its context.
func (p *checkup) ask(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	limit := min(p.e.Timeout, askLimit)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	replies, err := drivers.Await(ctx, func() ([]drivers.Reply, error) { return p.Driver.Do(ctx, cmds...) })
	switch {
	case err == nil && len(replies) != len(cmds):
		return nil, fmt.Errorf("%d replies to %d commands", len(replies), len(cmds))
	case err != nil && (ctx.Err() != nil || timedOut(err)):
		return nil, fmt.Errorf("%w within %v", errSilent, limit)
	}
	return replies, err
}

// timedOut reports whether err is a client's time-out, which may occur slightly before the deadline.
func timedOut(err error) bool {
	var e net.Error
	ok := errors.As(err, &e)
	return ok && e.Timeout() && !errors.Is(err, drivers.ErrNotSent)
}

// probe returns a key for this examination and node. The node is part of the name, because two nodes may be the same
// server.
func (p *checkup) probe(what string) string {
	return fmt.Sprintf("locker-doctor:%s:%d:%s", p.e.id, p.index, what)
}

// refusal returns the server's error, if reply is one.
func refusal(reply drivers.Reply) (drivers.ServerError, bool) {
	e, ok := reply.(drivers.ServerError)
	return e, ok
}

func (p *checkup) user() string {
	if p.Username == "" {
		return "default"
	}
	return p.Username
}

// list joins names for a message.
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
