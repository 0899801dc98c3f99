package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/internal/redis/servers"
)

func bootstrapCommand(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "bootstrap",
		GroupID: groupLook,
		Short:   "Say that the servers are new, so that they need not rest first",
		Long: `With a restart guard (guard=30s in the configuration), a server that may have forgotten locks rests: it
grants no lock until all locks that it may have forgotten have ended. A new server looks like one that has forgotten
everything, and rests, too. Bootstrap says that nobody can hold a lock of this deployment, because it is new. The
servers then grant locks at once.

Do not run it after a failure: if a program still holds a lock that a server has forgotten, another program can get the
same lock. Without bootstrap nothing is wrong; the first locks only take a little longer than the guard.

On a terminal, bootstrap asks for confirmation. Elsewhere it requires --yes.`,
		Example: `  locker bootstrap --url 'redlock://host1,host2,host3?guard=30s'
  locker bootstrap --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.bootstrap(cmd.Context(), yes) },
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

func (a *app) bootstrap(ctx context.Context, yes bool) error {
	d, err := a.deployment(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	if d.Guard == 0 {
		return exit.With(exit.Config, errors.New("the configuration has no restart guard, so no server rests"),
			"to have one, give the longest TTL of all locks as guard=30s in the URL, or as guard in the section of the file")
	}
	var names []string
	for _, s := range d.Servers {
		names = append(names, s.Name)
	}
	if !yes {
		if err := a.confirmNew(names, d); err != nil {
			return err
		}
	}
	if err := d.Bootstrap(ctx); err != nil {
		return exit.With(exit.Unavailable, err, "the other servers are done: run it again when this is mended")
	}
	if a.json {
		return a.printJSON(struct {
			Servers []string `json:"servers"`
			GuardMS int64    `json:"guard_ms"`
		}{names, d.Guard.Milliseconds()})
	}
	for _, name := range names {
		a.note("%s grants locks at once; after a restart it rests until locks of %v have ended", name, d.Guard)
	}
	return nil
}

// confirmNew asks whether the servers are new.
func (a *app) confirmNew(names []string, d *servers.Deployment) error {
	nobody := exit.Usagef("there is no terminal for the confirmation: use --yes if no program can hold a lock")
	if !isTerminal(a.stdin) {
		return nobody
	}
	question := fmt.Sprintf("%s\nIs it certain that no program holds a lock with the prefix %q there?",
		strings.Join(names, "\n"), d.Prefix)
	return a.ask(question, nobody, errors.New("nothing was done: the servers rest as after a restart"))
}
