package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/conform"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/servers"
)

func conformCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "conform",
		GroupID: groupLook,
		Short:   "Run the conformance suites against a deployment",
		Long: `Conform checks the library's promises on the real servers, of any store that a URL can name: exclusion,
expiry, renewal, loss, waiting in order, contexts that end at any moment, and fencing tokens, for locks, for semaphores,
and for readers and writers. It takes up to a minute, and longer if a request does: readers and writers take thousands.
It uses its own prefix, so that it does not affect other locks.

On Redis it deletes its keys at the end. For that the user needs +scan. Without it, the fencing counters of that prefix
stay, because counters never expire: one for each hash slot in which there was a lock. On other stores, locks that a
property has left behind end within five minutes.

Conform skips what the store does not state that it can do: that waiters are served in order, for example. It also skips
properties for which the servers would have to hang or restart, or for which all their keys would have to
be read. On a slow link a property may fail because it took too long.

It exits with 0 if all properties hold, with 1 if one does not, and with 69 if the servers cannot be used.`,
		Example: `  locker conform --url redis+rueidis://localhost
  locker conform --json | jq -r '.[] | select(.outcome == "fail") | .property'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.conform(cmd.Context()) },
	}
}

// exitFailed is the exit code if a property fails.
const exitFailed = 1

// suiteEnv names the variable that makes this command run the suites itself, in a process that package testing
// controls. Its value is the prefix.
const suiteEnv = "_LOCKER_CONFORM_PREFIX"

func (a *app) conform(ctx context.Context) error {
	c, err := a.config()
	if err != nil {
		return err
	}
	d, err := servers.Of(ctx, c)
	if err != nil {
		return exit.With(exit.Config, err, "")
	}
	defer func() { _ = d.Close() }()
	if prefix := a.getenv(suiteEnv); prefix != "" {
		return runSuite(ctx, c, d, prefix)
	}
	prefix := d.Prefix + "locker-conform:" + rand.Text()[:12] + ":"
	defer sweep(ctx, d, prefix)
	self, err := os.Executable()
	if err != nil {
		return exit.With(exit.OSErr, err, "")
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := a.tryOnce(ctx, under(c, prefix)); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, "conform")
	if a.url != "" {
		cmd.Args = append(cmd.Args, "--url="+a.url)
	}
	if a.file != "" {
		cmd.Args = append(cmd.Args, "--config="+a.file)
	}
	cmd.Env = append(slices.Clone(a.environ), suiteEnv+"="+prefix)
	var trouble strings.Builder
	cmd.Stderr = &trouble
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return exit.With(exit.OSErr, err, "")
	}
	p := a.progress()
	p.show("starting")
	results := conform.Read(out, func(property string) { p.show("%s", property) })
	err = cmd.Wait()
	p.done()
	switch {
	case ctx.Err() != nil:
		return &exit.Error{Code: exit.Signal + int(syscall.SIGINT), Err: errors.New("interrupted")}
	case len(results) == 0:
		return fmt.Errorf("the suites did not run: %w: %s", err, strings.TrimSpace(trouble.String()))
	}
	return a.printResults(results)
}

// tryOnce takes a lock. If that is not possible, the suites are not started: every property would fail, and a hung
// server would delay each of them.
func (a *app) tryOnce(ctx context.Context, c *config.Config) error {
	l, err := a.shared(ctx, c)
	if err != nil {
		return err
	}
	lease, err := l.TryLock(ctx, "probe")
	if err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

// runSuite runs the suites under prefix and ends the process. It returns if they cannot begin.
func runSuite(ctx context.Context, c *config.Config, d *servers.Deployment, prefix string) error {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // each of the many clients of a Redlock would log the same warnings
	of := func(store int) string { return fmt.Sprintf("%s%d:", prefix, store) }
	tested := conform.Deployment{
		Open: func(store int) (locker.Locker, error) { return under(c, of(store)).Open(ctx) },
	}
	if len(d.Servers) > 0 {
		tested.Delete = func(store int, key string) error {
			return eachServer(d, func(s servers.Server) error {
				_, err := s.Driver.Do(ctx, drivers.Command{"DEL", of(store) + key})
				return err
			})
		}
	}
	return conform.Main(ctx, tested)
}

// under returns a copy of c with another prefix and the library's default TTL. It has no restart guard, because under a
// new prefix all servers would rest.
func under(c *config.Config, prefix string) *config.Config {
	other := *c
	other.Redis.Guard, other.Redlock.Guard = 0, 0
	other.Prefix, other.TTL = &prefix, 0
	return &other
}

func (a *app) printResults(results []conform.Result) error {
	type resultJSON struct {
		conform.Result
		TookMS int64 `json:"took_ms"`
	}
	var list []resultJSON
	count := map[conform.Outcome]int{}
	s := a.style(a.stdout)
	paint := map[conform.Outcome]func(string) string{conform.Passed: s.good, conform.Failed: s.bad,
		conform.Skipped: s.faint}
	for _, r := range results {
		count[r.Outcome]++
		list = append(list, resultJSON{r, r.Took.Milliseconds()})
		if a.json || a.quiet && r.Outcome != conform.Failed {
			continue
		}
		fmt.Fprintf(a.stdout, "%s  %-38s %6.2f s\n", paint[r.Outcome](string(r.Outcome)), r.Property, r.Took.Seconds())
		for _, line := range r.Log {
			fmt.Fprintln(a.stdout, "      "+line)
		}
	}
	if a.json {
		if err := a.printJSON(list); err != nil {
			return err
		}
	} else if !a.quiet {
		fmt.Fprintf(a.stdout, "\n%d properties: %d hold, %d do not, %d were skipped\n", len(results),
			count[conform.Passed], count[conform.Failed], count[conform.Skipped])
	}
	if count[conform.Failed] > 0 {
		return &exit.Error{Code: exitFailed}
	}
	return nil
}

// sweep deletes all keys that begin with prefix, also inside a hash tag.
func sweep(ctx context.Context, d *servers.Deployment, prefix string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = eachServer(d, func(s servers.Server) error {
		for cursor := "0"; ; {
			replies, err := s.Driver.Do(ctx,
				drivers.Command{"SCAN", cursor, "MATCH", "*" + escaped(prefix) + "*", "COUNT", "1000"})
			if err != nil {
				return err
			}
			page, _ := replies[0].([]drivers.Reply)
			if len(page) != 2 {
				return nil // the user may not run SCAN
			}
			keys, _ := page[1].([]drivers.Reply)
			for chunk := range slices.Chunk(keys, 100) {
				del := drivers.Command{"DEL"}
				for _, k := range chunk {
					if key, _ := k.(string); strings.Contains(key, prefix) {
						del = append(del, key)
					}
				}
				if _, err := s.Driver.Do(ctx, del); err != nil {
					return err
				}
			}
			if cursor, _ = page[0].(string); cursor == "0" || cursor == "" {
				return nil
			}
		}
	})
}

// escaped returns a pattern for SCAN that matches text.
func escaped(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(text)
}

// eachServer calls f for all servers concurrently and returns one of the errors.
func eachServer(d *servers.Deployment, f func(servers.Server) error) error {
	errs := make(chan error, len(d.Servers))
	var wg sync.WaitGroup
	for _, s := range d.Servers {
		wg.Go(func() { errs <- f(s) })
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
