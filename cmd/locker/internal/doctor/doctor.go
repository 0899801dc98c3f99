// Package doctor examines Redis servers: are they fit for locks? It looks at each of them and at all together, says for every
// check ok, warn or fail with a reason and what to do, and is done in bounded time, whatever the servers do.
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
)

// Level is how bad it is.
type Level string

// What a check can come to. Warn is for what weakens a promise or could not be found out, Fail for what breaks one.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

var severity = map[Level]int{OK: 0, Warn: 1, Fail: 2}

// Worse reports whether l is worse than m.
func (l Level) Worse(m Level) bool { return severity[l] > severity[m] }

// Finding is what one check came to.
type Finding struct {
	Node  string `json:"node,omitempty"` // empty: it is about all of them
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"` // what to do about it, unless Level is OK
}

// Report is what was found.
type Report struct {
	Level    Level     `json:"level"` // the worst
	Findings []Finding `json:"findings"`
}

// Deployment is what to examine.
type Deployment struct {
	Redlock bool
	Prefix  string
	TTL     time.Duration // that locks have as a rule
	Timeout time.Duration // of one exchange
	Budget  time.Duration // of one operation on a Redlock
	Nodes   []Node
}

// Node is one server. The driver stays open.
type Node struct {
	Name     string
	Username string // empty: the default user
	Driver   drivers.Driver
	Dial     drivers.Config // how to connect without the driver
}

const (
	// askLimit bounds one question, if the deployment's own timeout does not bound it sooner.
	askLimit = 3 * time.Second
	// nodeLimit bounds what is done with one node, and crossLimit what is done with all together after that.
	nodeLimit  = 20 * time.Second
	crossLimit = 5 * time.Second
)

// Examine looks at everything. All nodes are examined at once, so one that hangs holds up nobody. progress, if not nil, is
// told of nodes that are done, one at a time.
func Examine(ctx context.Context, d Deployment, progress func(node string)) Report {
	e := &examination{Deployment: d, id: rand.Text()[:12]}
	e.patients = make([]*patient, len(d.Nodes))
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i, n := range d.Nodes {
		p := &patient{Node: n, e: e, index: i}
		e.patients[i] = p
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
	for _, p := range e.patients {
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
	id       string // of this one, in the names of its probe keys
	patients []*patient
	findings []Finding
}

// patient is one node under examination.
type patient struct {
	Node
	e        *examination
	index    int
	findings []Finding

	reached bool
	info    map[string]string // empty if it may not be read
	ahead   time.Duration     // of the local clock, give or take half of rtt
	rtt     time.Duration
	aofSync string // appendfsync, empty if it is not known
}

func (p *patient) examine(ctx context.Context) {
	if p.reached = p.reach(ctx); !p.reached {
		return
	}
	p.latency(ctx)
	p.readInfo(ctx)
	if len(p.info) > 0 {
		p.version()
		if p.mode() == "sentinel" {
			p.fail("role", "give the address of the Redis that it watches over", "this is a sentinel, which keeps no keys")
			return
		}
		p.role()
		p.persistence(ctx)
		p.eviction()
		p.uptime()
	}
	if p.rights(ctx) {
		p.locks(ctx)
	}
}

func (p *patient) ok(check, format string, args ...any) {
	p.findings = append(p.findings, Finding{p.Name, check, OK, fmt.Sprintf(format, args...), ""})
}

func (p *patient) warn(check, fix, format string, args ...any) {
	p.findings = append(p.findings, Finding{p.Name, check, Warn, fmt.Sprintf(format, args...), fix})
}

func (p *patient) fail(check, fix, format string, args ...any) {
	p.findings = append(p.findings, Finding{p.Name, check, Fail, fmt.Sprintf(format, args...), fix})
}

func (e *examination) add(check string, level Level, fix, format string, args ...any) {
	e.findings = append(e.findings, Finding{"", check, level, fmt.Sprintf(format, args...), fix})
}

var errSilent = errors.New("no answer")

// ask sends commands and waits for the answers, in bounded time whatever the client does.
func (p *patient) ask(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
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

// timedOut reports whether err is what a client makes of the deadline that it was given, a moment before it is over.
func timedOut(err error) bool {
	var e net.Error
	ok := errors.As(err, &e)
	return ok && e.Timeout() && !errors.Is(err, drivers.ErrNotSent)
}

// probe is a key of the examination's own, for this node: two may turn out to be one server.
func (p *patient) probe(what string) string {
	return fmt.Sprintf("locker-doctor:%s:%d:%s", p.e.id, p.index, what)
}

// refusal returns the server's error, if reply is one.
func refusal(reply drivers.Reply) (drivers.ServerError, bool) {
	e, ok := reply.(drivers.ServerError)
	return e, ok
}

func (p *patient) user() string {
	if p.Username == "" {
		return "default"
	}
	return p.Username
}

// list joins names for people.
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
