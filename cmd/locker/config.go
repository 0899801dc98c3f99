package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

// A file or URL may be shared with programs that report to OpenTelemetry. There is no SDK here that they could report to, so
// tracing is allowed, and does nothing; config/tracing would only make the command two megabytes larger.
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
			Long: `Check reads the configuration as the other commands do, opens the files that it names, and reports all that is wrong at
once, with line or variable. It does not connect to anything: that is what locker doctor is for.

It exits with 0 if all is well, and with 78 otherwise.`,
			Example: `  locker config check --config /etc/locker.yaml
  LOCKER_URL=redlock://host1,host2,host3 locker config check`,
			Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { return a.configCheck() },
		},
		&cobra.Command{
			Use:   "print",
			Short: "Print the configuration that is in effect, without passwords",
			Long: `Print shows what the file, the environment and the flags come to: as YAML, which --config takes, or with --json. Passwords
are shown as ` + config.Secret("x").String() + `.`,
			Example: `  locker config print --config /etc/locker.yaml
  LOCKER_URL=redis://localhost LOCKER_TTL=5s locker config print --json`,
			Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { return a.configPrint() },
		},
	)
	return cmd
}

func (a *app) configCheck() error {
	c, err := a.config()
	if err != nil {
		return err
	}
	if err := unreadable(c); err != nil {
		return &exitError{exitConfig, err, "the user who runs locker must be able to read them"}
	}
	if a.json {
		return a.printJSON(map[string]any{"ok": true, "url": c.String()})
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

// unreadable reports the files that c names for the backend it uses and that cannot be read.
func unreadable(c *config.Config) error {
	var paths []string
	add := func(passwordFile string, t *config.TLS) {
		paths = append(paths, passwordFile)
		if t != nil {
			paths = append(paths, t.CAFile, t.CertFile, t.KeyFile)
		}
	}
	switch c.Backend {
	case "redis":
		add(c.Redis.PasswordFile, c.Redis.TLS)
	case "redlock":
		add(c.Redlock.PasswordFile, c.Redlock.TLS)
		for _, n := range c.Redlock.Nodes {
			add(n.PasswordFile, n.TLS)
		}
	}
	slices.Sort(paths)
	var problems []error
	for _, path := range slices.Compact(paths) {
		if path == "" {
			continue
		}
		if _, err := os.ReadFile(path); err != nil {
			problems = append(problems, fmt.Errorf("config: %w", err))
		}
	}
	return errors.Join(problems...)
}
