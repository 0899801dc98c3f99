package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/doctor"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/redis/servers"
)

func doctorCommand(a *app) *cobra.Command {
	var restarted string
	var longest time.Duration
	cmd := &cobra.Command{
		Use:     "doctor",
		GroupID: groupLook,
		Short:   "Examine the servers: are they fit for locks?",
		Long: `Doctor examines each server, and all servers together. For each check it prints ok, warn or fail, the
reason, and what to do:

  reachable     does the server answer, and accept the password?
  latency       are round trips short compared with the timeouts?
  version       is it Redis 5 or newer?
  role          is it a master?
  persistence   does it keep locks over a restart (docs/safety.md, E1)?
  eviction      does it delete locks when its memory is full?
  memory        is its memory nearly full?
  replicas      are there enough, and could one that lacks the latest locks take over?
  slow scripts  could another program's script stop it for longer than a lease lasts?
  settings      can all settings be read?
  uptime        was it restarted recently?
  rights        may the user run every command that locks need? (tried on separate keys under the prefix)
  scripts       can a lock be taken, extended, waited for, handed over and released?
  messages      are waiters notified, or do they have to poll?
  guard         does it rest after a restart? (if the configuration has a restart guard)
  nodes         is there a majority, and is the number of nodes odd and at least three?
  identity      is a server configured twice?
  independence  does a write to one server appear on another (replica, proxy, virtual address)?
  clocks        how much do the servers' clocks differ?

A warning means that a promise is weakened, or that a check had no result. A failure means that a promise is broken.
Doctor names the promise as docs/safety.md does, if a setting of the server is against one.
Doctor ends within half a minute, whatever the servers do, and leaves nothing behind. With --quiet it prints only
warnings and failures.

Locks that are not on Redis are examined as clients see them: whether two clients can take, hand over, verify and
inspect a lock, how long that takes, and whether tokens grow.

It exits with 0 if all checks are ok, with 1 if there are warnings, and with 2 if there are failures.

With --after-restart it examines nothing. It says for how long that server should be kept away from clients after it has
ended, so that all locks that it may have forgotten have ended, too.`,
		Example: `  locker doctor --url redlock://host1,host2,host3
  locker doctor --json | jq '.findings[] | select(.level != "ok")'
  locker doctor --after-restart host2 --longest-ttl 1m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			switch {
			case restarted != "":
				return a.afterRestart(ctx, restarted, longest)
			case longest != 0:
				return exit.Usagef("--longest-ttl needs --after-restart")
			}
			return a.doctor(ctx)
		},
	}
	cmd.Flags().StringVar(&restarted, "after-restart", "",
		"say for how long this `server`, a name or an address, should be kept away from clients after a restart")
	durationVar(cmd.Flags(), &longest, "longest-ttl",
		"with --after-restart: the longest TTL of all locks; by default the guard or the TTL of the configuration")
	return cmd
}

// Exit codes of doctor. Monitoring systems use the same ones.
const (
	exitWarn = 1
	exitFail = 2
)

func (a *app) doctor(ctx context.Context) error {
	r, err := a.examine(ctx)
	if err != nil {
		if e := exit.Of(err); e.Next != exit.Diagnosis {
			return e
		}
		return exit.With(exit.Unavailable, err, "is the server up, and does the network let it answer?")
	}
	if ctx.Err() != nil {
		return &exit.Error{Code: exitFail, Err: errors.New("interrupted")}
	}
	if a.json {
		if err := a.printJSON(r); err != nil {
			return err
		}
	} else {
		a.printReport(r)
	}
	switch r.Level {
	case doctor.Fail:
		return &exit.Error{Code: exitFail}
	case doctor.Warn:
		return &exit.Error{Code: exitWarn}
	}
	return nil
}

// examine examines the configured servers, or the locks themselves if they are not on Redis.
func (a *app) examine(ctx context.Context) (doctor.Report, error) {
	d, err := a.deployment(ctx)
	if errors.Is(err, errNoRedis) {
		return a.examineStore(ctx, err)
	}
	if err != nil {
		return doctor.Report{}, err
	}
	defer func() { _ = d.Close() }()
	e := doctor.Deployment{Redlock: d.Redlock, Prefix: d.Prefix, TTL: d.TTL, Guard: d.Guard, Replicas: d.Replicas,
		Timeout: d.Timeout, Budget: d.Budget}
	for _, s := range d.Servers {
		e.Nodes = append(e.Nodes, doctor.Node(s))
	}
	p := a.progress()
	left := len(e.Nodes)
	p.show("examining %d servers", left)
	r := doctor.Examine(ctx, e, func(string) {
		left--
		p.show("waiting for %d of %d servers", left, len(e.Nodes))
	})
	p.done()
	return r, nil
}

// examineStore examines locks that are not on Redis, with two clients. If other processes do not see the locks, there
// is nothing to examine, and the error is why.
func (a *app) examineStore(ctx context.Context, why error) (doctor.Report, error) {
	c, err := a.config()
	if err != nil {
		return doctor.Report{}, err
	}
	var pair [2]*config.Opened
	for i := range pair {
		l, err := a.open(ctx, c)
		if err != nil {
			return doctor.Report{}, err
		}
		a.opened = append(a.opened, l)
		if pair[i] = l; l.InProcess() {
			return doctor.Report{}, why
		}
	}
	return doctor.ExamineStore(ctx, pair[0], pair[1]), nil
}

var errNoRedis = errors.New("have no Redis server")

// deployment opens a driver for each of the configured servers.
func (a *app) deployment(ctx context.Context) (*servers.Deployment, error) {
	c, err := a.config()
	if err != nil {
		return nil, err
	}
	d, err := servers.Of(ctx, c)
	if err != nil {
		return nil, exit.With(exit.Config, err, "")
	}
	if len(d.Servers) == 0 {
		return nil, exit.With(exit.Config, fmt.Errorf("locks in %s %w", c.Backend, errNoRedis),
			"this command is for Redis only: to try other stores, run locker run --key trial -- true")
	}
	return d, nil
}

func (a *app) printReport(r doctor.Report) {
	s := a.style(a.stdout)
	node, count := "", map[doctor.Level]int{}
	titled := false
	wide := columns(a.stdout)
	if wide == 0 {
		wide = math.MaxInt // programs such as grep read lines
	}
	for _, f := range r.Findings {
		count[f.Level]++
		if a.quiet && f.Level == doctor.OK {
			continue
		}
		if !titled || f.Node != node {
			if titled {
				fmt.Fprintln(a.stdout)
			}
			title := f.Node
			if title == "" {
				title = "all together"
			}
			fmt.Fprintln(a.stdout, s.strong(title))
		}
		node, titled = f.Node, true
		first := fmt.Sprintf("  %-4s  %-12s  ", f.Level, f.Check)
		below := strings.Repeat(" ", len(first))
		var text strings.Builder
		fill(&text, first, below, exit.OneLine(strings.TrimPrefix(f.Text, "locker: ")), wide)
		if f.Promise != "" {
			fill(&text, below+"weakens ", below+"  ", f.Promise, min(wide, maxFix))
		}
		if f.Fix != "" {
			fill(&text, below+"→ ", below+"  ", f.Fix, min(wide, maxFix))
		}
		level := fmt.Sprintf("  %-4s", f.Level)
		fmt.Fprint(a.stdout, "  "+s.ofLevel(f.Level)+strings.TrimPrefix(text.String(), level))
	}
	if a.quiet {
		return
	}
	fmt.Fprintf(a.stdout, "\n%d checks: %d ok, %d warn, %d fail\n", len(r.Findings), count[doctor.OK],
		count[doctor.Warn], count[doctor.Fail])
}

// maxFix is the width of advice.
const maxFix = 114

func (s style) ofLevel(l doctor.Level) string {
	text := fmt.Sprintf("%-4s", l)
	switch l {
	case doctor.Fail:
		return s.bad(text)
	case doctor.Warn:
		return s.warn(text)
	default:
		return s.good(text)
	}
}

// afterRestart says for how long a server that may have forgotten locks should be kept away from clients: as long as
// the restart guard would make it rest.
func (a *app) afterRestart(ctx context.Context, node string, longest time.Duration) error {
	d, err := a.deployment(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	var names []string
	for _, s := range d.Servers {
		names = append(names, s.Name)
	}
	i := slices.IndexFunc(d.Servers, func(s servers.Server) bool { return s.Name == node || s.Dial.Addr == node })
	switch {
	case i < 0:
		return exit.Usagef("--after-restart: %q is none of the configured servers: give one of %s", node,
			strings.Join(names, ", "))
	case longest != 0 && (longest < locker.MinTTL || longest > locker.MaxTTL):
		return exit.Usagef("--longest-ttl %v is not from %v to %v", longest, locker.MinTTL, locker.MaxTTL)
	case longest == 0:
		longest = max(d.TTL, d.Guard)
	}
	const startTimeout = 90 * time.Second // systemd's default
	const reserve = 2 * time.Second       // for the granularity of expiry, and for clocks that differ
	out := longest + longest/50 + reserve
	if a.json {
		return a.printJSON(struct {
			Node      string `json:"node"`
			LongestMS int64  `json:"longest_ttl_ms"`
			KeepOutMS int64  `json:"keep_out_ms"`
			Guard     bool   `json:"guard"`
		}{names[i], longest.Milliseconds(), out.Milliseconds(), d.Guard > 0})
	}
	if d.Guard > 0 {
		fmt.Fprintf(a.stdout, "%s needs no delay: with the restart guard of %v it grants no lock for %v\n", names[i],
			d.Guard, d.Guard+d.Guard/50+reserve)
		return nil
	}
	fmt.Fprintf(a.stdout, "keep %s away from clients for %v after it has ended\n", names[i], out)
	// The + is needed where the unit forbids to execute anything but the server, as that of Debian does. systemd ends a
	// start that takes longer than TimeoutStartSec, of which the sleep is a part.
	seconds := math.Ceil(out.Seconds())
	a.note("every lock that it may have forgotten has ended by then, if no lock has a TTL above %v\n"+
		"  with systemd: systemctl edit redis-server, and add\n"+
		"    [Service]\n"+
		"    ExecStartPre=+/bin/sleep %.0f\n"+
		"    TimeoutStartSec=%.0f\n"+
		"  or let a restart guard do it: guard=%v in the URL", longest, seconds, seconds+startTimeout.Seconds(), longest)
	return nil
}
