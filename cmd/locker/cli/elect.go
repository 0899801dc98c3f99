package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/golocker/locker/cmd/locker/internal/supervise"
)

func electCommand(a *app) *cobra.Command {
	var key string
	o := &runOptions{wait: "forever", weight: 1}
	o.OnLost, o.Grace = supervise.Term, -1
	cmd := &cobra.Command{
		Use:     "elect --key KEY [flags] -- COMMAND [ARG]…",
		GroupID: groupUse,
		Short:   "Run a command on one machine at a time, by election",
		Long:    electHelp,
		Example: `  locker elect --key scheduler -- /usr/local/bin/scheduler
  locker elect --key primary --ttl 10s --grace 3s -- \
    sh -c 'exec server --term "$LOCKER_FENCE"'
  # on three machines at a time
  locker elect --key workers --permits 3 -- ./worker`,
		Args: someCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.read(cmd, args); err != nil {
				return err
			}
			o.Keys = []string{key}
			o.NoInput = isTerminal(os.Stdin) // a command that read from a terminal that it does not have would be stopped
			return a.supervise(cmd.Context(), o, supervise.Elect)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after the command belong to the command, even without --
	flags.StringVarP(&key, "key", "k", "", "the `name` of the election, which all machines share")
	permitsVar(cmd, &o.permits, "the `number` of machines that lead at a time, instead of one")
	durationVar(flags, &o.ttl, "ttl",
		"for how long nobody leads after a crash (30s, or the value of the configuration)")
	durationVar(flags, &o.Grace, "grace",
		"`time` between SIGTERM and SIGKILL (5s, or a third of the TTL if that is less)")
	for _, name := range []string{"key", "ttl", "grace"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

const electHelp = `Elect waits until it leads, runs COMMAND while it leads, and waits again. Start it on several
machines with the same key: COMMAND runs on one of them at a time.

Elect runs the command as locker run does, with the same environment, process group and handling of signals; see locker
run --help. LOCKER_FENCE is the number of the term, which grows with each one. On a terminal, the command has an empty
standard input: elect keeps the terminal, so that Ctrl-C ends the command and elect, too.

  If the leader cannot renew its lease, its command is stopped, and another machine leads. Elect waits again.
  If the command ends by itself, another machine leads if one waits. Elect waits again, and starts the command anew.
  Elect passes SIGTERM, SIGINT, SIGHUP and SIGQUIT on. When the command has ended, elect exits, and the next one leads.

With --permits, as many machines lead at a time. Start elect on more of them, with the same number on all. LOCKER_SLOT
is a number from 0 that no other leader has at the same time, and LOCKER_FENCE grows with each term of that LOCKER_SLOT.

Elect says on stderr who leads, this machine or another one; with --permits, only that this machine does. --quiet
switches that off.

Exit codes are those of locker run, except 75 and 79: elect goes on when the lock is held or lost.`
