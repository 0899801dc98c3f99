package settings

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
)

// Server is a server to look at.
type Server struct {
	Name   string
	Driver drivers.Driver
}

// Audit is an audit of servers that goes on in the background. A nil Audit is one that has ended.
type Audit struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// Begin looks at servers once, in the background, by one exchange with each that takes at most limit (0:
// drivers.DefaultTimeout). It logs the findings that weaken a promise, each once with the names of all servers
// concerned. It is silent about servers that do not answer, and about what they may not tell. It returns nil if the
// logger takes no warnings.
func Begin(logger *slog.Logger, limit time.Duration, use Use, servers ...Server) *Audit {
	if logger == nil || !logger.Enabled(context.Background(), slog.LevelWarn) {
		return nil
	}
	if limit <= 0 {
		limit = drivers.DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	a := &Audit{cancel, make(chan struct{})}
	go func() {
		defer close(a.done)
		defer cancel()
		w := audit(ctx, use, servers)
		if !errors.Is(ctx.Err(), context.Canceled) { // the limit is no reason to drop what was found
			w.log(logger)
		}
	}()
	return a
}

// Close ends the audit. It does not wait for servers. After Close, nothing is logged.
func (a *Audit) Close() {
	if a != nil {
		a.cancel()
		<-a.done
	}
}

// view is what an audit has found.
type view struct {
	findings []Finding
	nodes    [][]string // by finding
	clocks   []Clock
}

func audit(ctx context.Context, use Use, servers []Server) *view {
	var mu sync.Mutex
	var wg sync.WaitGroup
	v := new(view)
	for _, s := range servers {
		wg.Go(func() {
			sent := time.Now()
			replies, err := drivers.Await(ctx, func() ([]drivers.Reply, error) { return s.Driver.Do(ctx, Questions()...) })
			took := time.Since(sent)
			if err != nil {
				return
			}
			snapshot := Read(replies)
			mu.Lock()
			defer mu.Unlock()
			for _, f := range Check(snapshot, use) {
				v.add(f, s.Name)
			}
			if !snapshot.Clock.IsZero() {
				v.clocks = append(v.clocks, ReadClock(s.Name, snapshot.Clock, sent, took))
			}
		})
	}
	wg.Wait()
	return v
}

func (v *view) add(f Finding, node string) {
	i := slices.Index(v.findings, f)
	if i < 0 {
		i = len(v.findings)
		v.findings, v.nodes = append(v.findings, f), append(v.nodes, nil)
	}
	v.nodes[i] = append(v.nodes[i], node)
}

func (v *view) log(logger *slog.Logger) {
	for i, f := range v.findings {
		if f.Promise != "" {
			slices.Sort(v.nodes[i])
			logger.Warn("locker: a server's settings weaken a promise: "+f.Text, "servers", v.nodes[i],
				"promise", f.Promise, "advice", f.Fix)
		}
	}
	if f, ok := Clocks(v.clocks); ok && f.Promise != "" {
		logger.Warn("locker: the servers' clocks weaken a promise: "+f.Text, "promise", f.Promise, "advice", f.Fix)
	}
}
