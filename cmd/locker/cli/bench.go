package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/node"
)

// Bounds of --for.
const (
	minBench = 100 * time.Millisecond
	maxBench = time.Minute
)

func benchCommand(a *app) *cobra.Command {
	var names []string
	var visit time.Duration
	cmd := &cobra.Command{
		Use:     "bench",
		GroupID: groupLook,
		Short:   "Measure how fast locks are on a deployment",
		Long: `Bench makes three measurements from this machine, with each driver that reaches the deployment:

  one at a time   how long it takes to lock and to unlock
  64 at once      how many locks 64 goroutines with different keys take and release per second
  one lock        how often a lock passes between 8 clients, how long they wait, and how even their shares are

Each measurement takes the time of --for. Bench uses its own keys under the prefix and deletes them at the end. It puts
a short but heavy load on the servers, which other users will notice.`,
		Example: `  locker bench
  locker bench --driver rueidis --for 5s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if visit < minBench || visit > maxBench {
				return usageError("--for %v is not from %v to %v", visit, minBench, maxBench)
			}
			for _, name := range names {
				if !slices.Contains(drivers.Names(), name) {
					return usageError("--driver: unknown driver %q: there are %s", name,
						strings.Join(drivers.Names(), ", "))
				}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.bench(ctx, names, visit)
		},
	}
	cmd.Flags().StringSliceVar(&names, "driver", nil,
		"which `drivers`, as a list (default: all that reach the deployment)")
	visit = time.Second
	durationVar(cmd.Flags(), &visit, "for", "how long each measurement takes")
	return cmd
}

func (a *app) bench(ctx context.Context, names []string, visit time.Duration) error {
	c, err := a.config()
	if err != nil {
		return err
	}
	d, err := a.deployment(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	if len(names) == 0 {
		names = reaching(d)
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // each of the many clients of a Redlock would log the same warnings
	b := &bench{app: a, visit: visit, prefix: d.Prefix, id: "locker-bench:" + rand.Text()[:12] + ":"}
	defer b.tidy(ctx, d)
	var all []benchResult
	p := a.progress()
	defer p.done()
	for _, name := range names {
		r, err := b.driver(ctx, with(c, name), name, p)
		p.done()
		switch {
		case ctx.Err() != nil:
			return &exitError{code: exitSignal + int(syscall.SIGINT), err: errors.New("interrupted")}
		case err != nil:
			return err
		}
		if all = append(all, r); !a.json {
			a.printBench(r)
		}
	}
	if a.json {
		return a.printJSON(all)
	}
	return nil
}

// reaching returns the drivers that reach all servers of d.
func reaching(d *config.Deployment) []string {
	names := drivers.Names()
	for _, s := range d.Servers {
		able := drivers.Reaching(s.Dial.Deployment())
		names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(able, name) })
	}
	return names
}

// with returns a copy of c with another driver for every server.
func with(c *config.Config, driver string) *config.Config {
	other := *c
	other.Redis.Driver, other.Redlock.Driver = driver, driver
	other.Redlock.Nodes = slices.Clone(c.Redlock.Nodes)
	for i := range other.Redlock.Nodes {
		other.Redlock.Nodes[i].Driver = ""
	}
	return &other
}

// bench is one call of the command.
type bench struct {
	app    *app
	visit  time.Duration
	prefix string
	id     string // the beginning of its keys, after the prefix
}

const (
	benchCrowd   = 64 // goroutines with keys of their own
	benchClients = 8  // that contend for one key
)

func (b *bench) key(i int) string { return fmt.Sprintf("%s%d", b.id, i) }

func (b *bench) driver(ctx context.Context, c *config.Config, name string, p *progress) (benchResult, error) {
	r := benchResult{Driver: name}
	var ls []locker.Locker
	for range benchClients {
		l, err := b.app.open(ctx, c, locker.TTL(10*time.Second))
		if err != nil {
			return r, err
		}
		defer func() { _ = l.Close() }()
		ls = append(ls, l)
	}
	for i := range 20 { // warm-up: connections are made and scripts are loaded
		if err := cycle(ctx, ls[i%len(ls)], b.key(benchCrowd), nil); err != nil {
			return r, err
		}
	}
	p.show("%s: one at a time", name)
	if err := b.alone(ctx, ls[0], &r); err != nil {
		return r, err
	}
	p.show("%s: %d at once", name, benchCrowd)
	if err := b.together(ctx, ls[0], &r); err != nil {
		return r, err
	}
	p.show("%s: %d clients and one lock", name, benchClients)
	return r, b.contended(ctx, ls, &r)
}

// tidy deletes the keys on all servers. Fencing counters stay, because other locks use them, too.
func (b *bench) tidy(ctx context.Context, d *config.Deployment) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	del := drivers.Command{"DEL"}
	for i := range benchCrowd + 1 {
		del = append(del, node.NamesOf(b.prefix, b.key(i)).Keys...)
	}
	_ = eachServer(d, func(s config.Server) error {
		_, err := s.Driver.Do(ctx, del)
		return err
	})
	// deletes tombstones as well if the user may run SCAN; otherwise they expire within a minute
	sweep(ctx, d, b.prefix+b.id)
}
