package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/servers"
)

// A configuration may be shared with programs that use OpenTelemetry. This command has no OpenTelemetry SDK, so it
// accepts the setting and does nothing. Importing config/tracing would only make it two megabytes larger.
func init() {
	config.RegisterTracing(func() locker.Middleware { return func(l locker.Locker) locker.Locker { return l } })
}

func configCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		SuggestionsMinimumDistance: 2,

		Use:     "config",
		GroupID: groupLook,
		Short:   "Check or print the configuration",
		Args:    noCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use:   "check",
			Short: "Say what is wrong with the configuration",
			Long: `Check reads the configuration as the other commands do, and the files that it names: passwords,
certificates and keys. It reports all mistakes at once, each with its line or variable, and also certificates that have
expired. It does not connect to any server; locker doctor does.

It exits with 0 if the configuration is correct, and with 78 otherwise.`,
			Example: `  locker config check --config /etc/locker.yaml
  LOCKER_URL=redlock://host1,host2,host3 locker config check`,
			Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return a.configCheck(cmd.Context()) },
		},
		&cobra.Command{
			Use:   "print",
			Short: "Print the configuration that is in effect, without passwords",
			Long: `Print shows the result of the file, the environment and the flags, as YAML for --config or, with
--json, as JSON. Passwords are shown as ` + config.Secret("x").String() + `.`,
			Example: `  locker config print --config /etc/locker.yaml
  LOCKER_URL=redis://localhost LOCKER_TTL=5s locker config print --json`,
			Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { return a.configPrint() },
		},
	)
	return cmd
}

func (a *app) configCheck(ctx context.Context) error {
	c, err := a.config()
	if err != nil {
		return err
	}
	d, err := servers.Of(ctx, c) // reads the files and contacts no server
	if err != nil {
		return exit.With(exit.Config, err, "")
	}
	_ = d.Close()
	warning := unfit(d)
	if a.json {
		answer := map[string]any{"ok": true, "url": c.String()}
		if warning != "" {
			answer["warning"] = warning
		}
		return a.printJSON(answer)
	}
	if warning != "" {
		a.note("warning: %s", warning)
	}
	if !a.quiet {
		fmt.Fprintf(a.stdout, "%s: %s\n", a.style(a.stdout).good("ok"), c)
	}
	return nil
}

func (a *app) configPrint() error {
	c, err := a.config()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(c)
	}
	e := yaml.NewEncoder(a.stdout)
	e.SetIndent(2)
	return e.Encode(c)
}

// unfit returns a warning if a Redlock has nodes that sentinels manage, fewer than three nodes or an even number.
func unfit(d *servers.Deployment) string {
	for _, s := range d.Servers {
		if d.Redlock && s.Dial.Topology() == drivers.SentinelMaster {
			return "redlock.nodes: " + s.Name + " is managed by sentinels: a replica that they promote may have forgotten " +
				"locks, and then votes again: give the addresses of standalone servers"
		}
	}
	switch n := len(d.Servers); {
	case !d.Redlock || n > 2 && n%2 == 1:
		return ""
	case n == 1:
		return "redlock.nodes: one node tolerates no failure: use three or five"
	case n == 2:
		return "redlock.nodes: two nodes tolerate no failure: use three or five"
	default:
		return fmt.Sprintf("redlock.nodes: %d nodes tolerate no more failures than %d: use an odd number", n, n-1)
	}
}
