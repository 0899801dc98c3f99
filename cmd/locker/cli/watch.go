package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/inspect"
)

// Bounds of --interval. Each poll costs the server one small script. A waiter that polls costs about as much as watch
// with the minimum interval.
const (
	defaultInterval = 500 * time.Millisecond
	minInterval     = 100 * time.Millisecond
)

func watchCommand(a *app) *cobra.Command {
	var interval time.Duration
	var permits int
	cmd := &cobra.Command{
		Use:     "watch KEY",
		GroupID: groupUse,
		Short:   "Follow a lock from owner to owner, until Ctrl-C",
		Long: `Watch shows a lock as it passes from owner to owner. On a terminal it updates one line, as far as the
terminal is wide. Otherwise it prints one line per change or, with --json, one JSON object per line.

Watch polls the lock every --interval, and when its TTL is over. It does not see owners that come and go in between.
Only waiters are notified of a release; watch does not wait for the lock, so that it does not delay anybody.

With --permits, watch follows the holders of the permits. On stores where each permit is a lock, it follows these and
the gate, and prints one line per change on a terminal, too. The holder of the gate is the first waiter. Without it,
watch follows the plain lock of that name and, if that is free at the beginning, the locks that readers, writers, and
holders of the first 64 permits have of the key then.

If the store does not answer, watch reports that as a change. Ctrl-C ends it with exit code 0.`,
		Example: `  locker watch backup
  locker watch export --permits 3
  locker watch backup --json | jq -r 'select(.state == "held") | .owner'`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval < minInterval {
				return exit.Usagef("--interval %v is below the minimum of %v", interval, minInterval)
			}
			if err := checkPermits(cmd, permits); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			l, i, err := a.inspector(ctx)
			if err != nil {
				return err
			}
			locks := locksOf(l, args[0], permits)
			if permits == 0 {
				if seen, err := i.Inspect(ctx, args[0]); err == nil && seen.State == inspect.Free {
					kinds, _ := kindsOf(ctx, l, i, args[0])
					for _, k := range kinds {
						locks = append(locks, k.locks...)
					}
				}
			}
			return a.watch(ctx, i, locks, interval)
		},
	}
	interval = defaultInterval
	durationVar(cmd.Flags(), &interval, "interval", "how often to look")
	permitsVar(cmd, &permits, "the `number` of permits that the key has, instead of one lock")
	return cmd
}

func (a *app) watch(ctx context.Context, i inspect.Inspector, locks []string, interval time.Duration) error {
	live := len(locks) == 1 && isTerminal(a.stdout) && !a.json && a.getenv("TERM") != "dumb"
	var views []*view
	for _, lock := range locks {
		views = append(views, &view{app: a, key: lock, live: live})
	}
	defer views[0].end()
	for {
		pause := interval
		for _, v := range views {
			seen, err := i.Inspect(ctx, v.key)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil && !errors.Is(err, locker.ErrUnavailable) {
				return err
			}
			v.show(time.Now(), seen, err)
			if seen.Remaining > 0 { // the lock may change hands at that time
				pause = min(pause, max(minInterval, seen.Remaining+time.Millisecond))
			}
			if err != nil { // one line tells of an outage, and the other locks would have to wait for its end as well
				break
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// view prints the changes of a lock.
type view struct {
	app  *app
	key  string
	live bool // one line of a terminal is updated

	shown bool
	whole string // the line of the last state, without the countdown
	last  inspect.Inspection
	fault string
}

func (v *view) show(at time.Time, seen inspect.Inspection, err error) {
	fault := ""
	if err != nil {
		fault = exit.Text(err)
	}
	changed := !v.shown || fault != v.fault || different(v.last, seen)
	before := v.whole
	v.shown, v.last, v.fault = true, seen, fault
	v.whole = v.line(at)
	switch {
	case v.app.json && changed:
		j := lockOf(v.key, seen)
		j.At, j.Error = &at, fault
		e := json.NewEncoder(v.app.stdout)
		e.SetEscapeHTML(false)
		_ = e.Encode(j)
	case v.live:
		if changed && before != "" {
			fmt.Fprintf(v.app.stdout, "\r\x1b[K%s\n", before) // the line of the former state stays, whole
		}
		fmt.Fprintf(v.app.stdout, "\r\x1b[K%s", cut(v.whole+v.countdown(), columns(v.app.stdout)))
	case !v.app.json && changed:
		fmt.Fprintln(v.app.stdout, v.whole)
	}
}

// end prints the last line whole, and moves the cursor to a new line.
func (v *view) end() {
	if v.live {
		fmt.Fprintf(v.app.stdout, "\r\x1b[K%s\n", v.whole)
	}
}

// different reports whether anything but the remaining time has changed. The number of a free lock grows on some stores
// when another lock is acquired.
func different(a, b inspect.Inspection) bool {
	same := func(a, b inspect.Inspection) bool {
		return a.State == b.State && a.Owner == b.Owner && (a.Fence == b.Fence || a.State == inspect.Free) &&
			a.Waiting == b.Waiting
	}
	if !slices.EqualFunc(a.Holders, b.Holders, same) {
		return true
	}
	return !same(a, b) || !slices.EqualFunc(a.Nodes, b.Nodes, func(a, b inspect.Node) bool {
		return (a.State == inspect.Unknown) == (b.State == inspect.Unknown)
	})
}

func (v *view) line(at time.Time) string {
	s := v.app.style(v.app.stdout)
	text := s.faint(at.Format("15:04:05.000")) + "  " + strconv.Quote(v.key) + " " + s.ofState(v.last)
	switch who := owner(v.last); {
	case who == "":
	case v.last.State == inspect.Held:
		text += ", owner " + who
	default:
		text += " " + who
	}
	if v.last.Fence > 0 && v.last.State != inspect.Free {
		text += ", fence " + fence(v.last)
	}
	if n := len(v.last.Holders); n > 1 {
		text += fmt.Sprintf(", and %d others", n-1)
	}
	if v.last.Waiting > 0 {
		text += fmt.Sprintf(", %d waiting", v.last.Waiting)
	}
	if silent := v.silent(); silent > 0 && v.fault == "" {
		text += s.warn(fmt.Sprintf(", %d of %d nodes do not answer", silent, len(v.last.Nodes)))
	}
	if v.fault != "" {
		text += s.bad(": " + v.reason())
	}
	return text
}

// reason is the fault without the words that the line has already: a terminal has room for the cause or for them.
func (v *view) reason() string {
	reason := strings.TrimPrefix(v.fault, fmt.Sprintf("inspect %q: ", v.key))
	return strings.TrimPrefix(reason, locker.ErrUnavailable.Error()+": ")
}

func (v *view) countdown() string {
	if in := freeIn(v.last); in != "" {
		return ", free in " + in
	}
	return ""
}

func (v *view) silent() (n int) {
	for _, node := range v.last.Nodes {
		if node.State == inspect.Unknown {
			n++
		}
	}
	return n
}
