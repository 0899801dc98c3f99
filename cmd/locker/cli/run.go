package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

// What becomes of the command when its lock is lost, or so long in doubt that its end has come near.
const (
	onLostTerm   = "term"   // SIGTERM, and SIGKILL after the grace, before the validity ends
	onLostKill   = "kill"   // SIGKILL
	onLostNotify = "notify" // nothing but the end of LOCKER_FD: the command knows what to do
)

const (
	// runTTL is the default of run: longer than the library's, because a grace must fit in, and because who runs programs by
	// a lock can wait for half a minute after a crash.
	runTTL = 30 * time.Second
	// runGrace is how long a command has to end after SIGTERM, if the TTL is long enough.
	runGrace = 5 * time.Second
)

// runOptions is what the command line of run comes to.
type runOptions struct {
	key      string
	ttl      time.Duration // 0: not given
	wait     string
	minHold  time.Duration
	maxHold  time.Duration
	onLost   string
	grace    time.Duration // negative: not given
	maxWait  time.Duration // from wait; negative: forever
	path     string        // of the command
	args     []string      // its argv
	validity time.Duration // from ttl and the configuration: the lease time
	dashes   bool          // the command stands after --
}

func runCommand(a *app) *cobra.Command {
	o := &runOptions{}
	cmd := &cobra.Command{
		Use:     "run --key KEY [flags] -- COMMAND [ARG]…",
		GroupID: groupUse,
		Short:   "Run a command while holding a lock",
		Long:    runHelp,
		Example: `  locker run --key backup --wait 0 -- /usr/local/bin/backup --all
  locker run --key deploy --wait 10m --ttl 1m --max-hold 1h -- make deploy
  locker run --key report --wait 5s --min-hold 1m --quiet -- /usr/local/bin/report     # from cron, on each machine
  locker run --key jobs -- sh -c 'psql -v fence="$LOCKER_FENCE" -f job.sql'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no command is given, after --")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.args, o.dashes = args, cmd.ArgsLenAtDash() == 0
			if cmd.Flags().Changed("grace") && o.grace < 0 {
				return usageError("--grace %v: it is 0 or more", o.grace)
			}
			return a.run(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows the command is the command's, also if somebody leaves out the --
	flags.StringVarP(&o.key, "key", "k", "", "the `name` of the lock")
	durationVar(flags, &o.ttl, "ttl", "for how long the lock stays taken after a crash (30s, or what the configuration says)")
	flags.StringVarP(&o.wait, "wait", "w", "forever", "how long to wait for the lock: forever, 0, or a `time` such as 30s")
	durationVar(flags, &o.minHold, "min-hold", "keep the lock taken for at least so long, also if the command is done sooner")
	durationVar(flags, &o.maxHold, "max-hold", "stop the command after so long")
	flags.StringVar(&o.onLost, "on-lost", onLostTerm, "if the lock is lost: `term`, kill or notify the command")
	o.grace = -1
	durationVar(flags, &o.grace, "grace", "`time` between SIGTERM and SIGKILL (5s, or a third of the TTL if that is less)")
	_ = cmd.RegisterFlagCompletionFunc("on-lost", cobra.FixedCompletions([]cobra.Completion{
		cobra.CompletionWithDesc(onLostTerm, "SIGTERM, and SIGKILL after the grace"),
		cobra.CompletionWithDesc(onLostKill, "SIGKILL at once"),
		cobra.CompletionWithDesc(onLostNotify, "nothing but the end of the file LOCKER_FD"),
	}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("wait", cobra.FixedCompletions([]cobra.Completion{"forever", "0", "30s"},
		cobra.ShellCompDirectiveNoFileComp))
	for _, name := range []string{"key", "ttl", "min-hold", "max-hold", "grace"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

const runHelp = `Run takes the lock, runs COMMAND, and releases the lock when the command has ended. The lock is renewed meanwhile.

No shell is involved; what follows -- is executed as it is. Standard input, output and error are the command's own, and so
is the exit code.

The command runs in a process group of its own. SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and SIGWINCH are passed on to the
group. SIGTERM is, too, and what is still there after the grace is killed. What the command leaves behind when it ends is
ended as well: SIGTERM, and SIGKILL after the grace. The lock is released after that.

If the lock is lost, or could not be renewed until its end is near, the command is stopped: by default with SIGTERM, and
with SIGKILL after the grace. The grace lies inside the validity of the lock: whoever gets it next does not find the command
running. That holds even if locker itself is stopped or killed.

The command finds in its environment:

  LOCKER_KEY     the key
  LOCKER_FENCE   the fencing token, for the resource: see docs/safety.md; 0 if there is none
  LOCKER_STORE   the backend: memory, redis, redlock, or another that this program knows
  LOCKER_FD      the number of a file descriptor that reaches its end when the lock is lost; nothing can be read from it

Exit codes:

  the command's own, or 128 plus the number of the signal that ended it
   64  the command line is wrong                75  somebody else has the lock
   65  the key holds something else             78  the configuration is wrong
   69  the server, or the quorum, is down       79  the lock was lost while the command ran
  126  the command cannot be executed          127  there is no such command
  128+n  signal n came before the command was started
   70, 71  what should not happen: a helper process was killed; the system refused to start one`

// check looks at what can be wrong before anything is done, and fills in the rest.
func (o *runOptions) check(c *config.Config) error {
	switch {
	case o.key == "":
		return usageError("no key: say which lock with --key")
	case len(o.key) > locker.MaxKey:
		return usageError("the key is longer than %d bytes", locker.MaxKey)
	case !slices.Contains([]string{onLostTerm, onLostKill, onLostNotify}, o.onLost):
		return usageError("--on-lost %q: it is term, kill or notify", o.onLost)
	case o.minHold < 0 || o.minHold > locker.MaxTTL:
		return usageError("--min-hold %v: it is from 0 to %v", o.minHold, locker.MaxTTL)
	case o.maxHold < 0 || o.maxHold > 0 && o.maxHold < locker.MinTTL:
		return usageError("--max-hold %v: it is %v at least", o.maxHold, locker.MinTTL)
	}
	switch d, err := time.ParseDuration(o.wait); {
	case o.wait == "forever":
		o.maxWait = -1
	case err != nil || d < 0:
		return usageError("--wait: invalid duration %q: use %s, 0 or forever", o.wait, seconds(o.wait))
	default:
		o.maxWait = d
	}
	if err := o.checkTTL(time.Duration(c.TTL)); err != nil {
		return err
	}
	var err error
	o.path, err = lookPath(o.args[0])
	var e *exitError
	if errors.As(err, &e) && e.code == exitNotFound && !o.dashes {
		e.next = "it was taken for the command: a key with spaces needs quotes, and the command stands after --"
	}
	return err
}

// checkTTL settles the lease time and the grace, which must fit into it: two thirds of the lease time are left when a
// renewal begins, and one is given up after a sixth.
func (o *runOptions) checkTTL(configured time.Duration) error {
	o.validity = o.ttl
	if o.ttl == 0 {
		o.validity = runTTL
		if configured != 0 {
			o.validity = configured
		}
	}
	switch {
	case o.validity < locker.MinTTL || o.validity > locker.MaxTTL:
		return usageError("--ttl %v: it is from %v to %v", o.validity, locker.MinTTL, locker.MaxTTL)
	case o.grace < 0:
		o.grace = min(runGrace, o.validity/3)
		if o.maxHold > 0 {
			o.grace = min(o.grace, o.maxHold/2)
		}
	case o.grace > o.validity/2:
		return usageError("--grace %v is more than half of the TTL of %v, in which it must fit beside the renewals", o.grace, o.validity)
	case o.maxHold > 0 && o.grace >= o.maxHold:
		return usageError("--grace %v is not less than --max-hold %v: the command would be stopped at once", o.grace, o.maxHold)
	}
	return nil
}

// margin is how long before the end of the validity SIGKILL is sent, for processes do not vanish in no time.
func (o *runOptions) margin() time.Duration {
	span := o.validity
	if o.maxHold > 0 {
		span = min(span, o.maxHold)
	}
	return min(span/20, 500*time.Millisecond)
}

// lookPath finds the command before anybody waits for a lock, with the exit codes that shells have for what can go wrong.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot): // of "." in PATH: it is the user's
		return path, nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EISDIR):
		return "", &exitError{exitNotRunnable, err, "is it executable?"}
	}
	if !strings.Contains(name, "/") {
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) { // shells say so if it is there, but not executable
			if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
				return "", &exitError{exitNotRunnable, fmt.Errorf("%s: %w", filepath.Join(dir, name), fs.ErrPermission), "is it executable?"}
			}
		}
	}
	return "", &exitError{exitNotFound, err, "give its path, or look at PATH"}
}
