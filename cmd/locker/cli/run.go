package cli

import (
	"context"
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
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/cmd/locker/internal/supervise"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

const (
	// runTTL is the default TTL of run. It is longer than the library's, because the grace period must fit in, and
	// because a delay of half a minute after a crash is acceptable for programs.
	runTTL = 30 * time.Second
	// runGrace is the default grace period after SIGTERM, if the TTL is long enough for it.
	runGrace = 5 * time.Second
)

// runOptions are the options of run and elect. Those of the supervisor are complete after check.
type runOptions struct {
	supervise.Options // Grace is negative if it was not given

	ttl    time.Duration // 0: not given
	wait   string
	dashes bool // the command follows --

	permits int // of the key; 0: it is one lock
	weight  int // how many of the permits are taken

	shared, exclusive bool // the key is that of readers and writers

	tick time.Duration // between the ticks of a schedule; 0: there is none
}

func runCommand(a *app) *cobra.Command {
	o := &runOptions{}
	var lease string
	cmd := &cobra.Command{
		Use:     "run --key KEY [flags] -- COMMAND [ARG]…",
		GroupID: groupUse,
		Short:   "Run a command while holding a lock",
		Long:    runHelp,
		Example: `  locker run --key backup --wait 0 -- /usr/local/bin/backup --all
  locker run --key deploy --wait 10m --ttl 1m --max-hold 1h -- make deploy
  # from cron, on each machine
  locker run -q --key report --tick 1m -- /usr/local/bin/report
  # on at most three machines at a time
  locker run --key export --permits 3 -- ./export
  # many readers, or one migration
  locker run --key config --shared -- ./serve
  locker run --key config --exclusive -- ./migrate
  # both locks, or none
  locker run --key account:1 --key account:2 -- ./transfer
  locker run --key jobs -- sh -c 'psql -v fence="$LOCKER_FENCE" -f job.sql'`,
		Args: someCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.read(cmd, args); err != nil {
				return err
			}
			if cmd.Flags().Changed("lease") {
				return a.resume(cmd.Context(), lease, o)
			}
			return a.supervise(cmd.Context(), o, supervise.Run)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after the command belong to the command, even without --
	flags.StringArrayVarP(&o.Keys, "key", "k", nil, "the `name` of the lock; given several times, of several locks")
	flags.StringVar(&lease, "lease", "", "the `file` with the lock, of locker acquire or of the step before")
	durationVar(flags, &o.ttl, "ttl",
		"for how long the lock stays taken after a crash (30s, or the value of the configuration; with --lease 10m)")
	waitVar(cmd, &o.wait)
	durationVar(flags, &o.MinHold, "min-hold",
		"keep the lock taken for at least this time, even if the command ends sooner")
	durationVar(flags, &o.MaxHold, "max-hold", "stop the command after this time")
	permitsVar(cmd, &o.permits, "the key has this `number` of permits, instead of one lock, and run takes one")
	flags.IntVar(&o.weight, "weight", 1, "with --permits, the `number` of permits to take, all or none")
	flags.BoolVar(&o.shared, "shared", false, "share the key with others that have --shared")
	flags.BoolVar(&o.exclusive, "exclusive", false, "exclude those that have --shared, too")
	durationVar(flags, &o.tick, "tick",
		"run the command at most once per tick of a schedule: the last multiple of this time")
	flags.StringVar(&o.OnLost, "on-lost", supervise.Term, "if the lock is lost: `term`, kill or notify the command")
	o.Grace = -1
	durationVar(flags, &o.Grace, "grace",
		"`time` between SIGTERM and SIGKILL (5s, or a third of the TTL if that is less)")
	_ = cmd.RegisterFlagCompletionFunc("on-lost", cobra.FixedCompletions([]cobra.Completion{
		cobra.CompletionWithDesc(supervise.Term, "SIGTERM, and SIGKILL after the grace"),
		cobra.CompletionWithDesc(supervise.Kill, "SIGKILL at once"),
		cobra.CompletionWithDesc(supervise.Notify, "only close LOCKER_FD"),
	}, cobra.ShellCompDirectiveNoFileComp))
	for _, name := range []string{"key", "ttl", "min-hold", "max-hold", "grace", "weight", "tick"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

func waitVar(cmd *cobra.Command, wait *string) {
	cmd.Flags().StringVarP(wait, "wait", "w", "forever",
		"how long to wait for the lock: forever, 0, or a `time` such as 30s")
	_ = cmd.RegisterFlagCompletionFunc("wait", cobra.FixedCompletions([]cobra.Completion{"forever", "0", "30s"},
		cobra.ShellCompDirectiveNoFileComp))
}

// someCommand checks that there is a command to run.
func someCommand(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New("no command: give it after --")
	}
	return nil
}

// read takes the command from args.
func (o *runOptions) read(cmd *cobra.Command, args []string) error {
	o.Args, o.dashes = args, cmd.ArgsLenAtDash() == 0
	if cmd.Flags().Changed("grace") && o.Grace < 0 {
		return exit.Usagef("--grace %v: it is 0 or more", o.Grace)
	}
	if cmd.Flags().Changed("weight") && o.permits == 0 {
		return exit.Usagef("--weight needs --permits")
	}
	if cmd.Flags().Changed("tick") {
		if o.tick < time.Second || o.tick%time.Second != 0 {
			return exit.Usagef("--tick %v: it is one or several seconds, such as 1m", o.tick)
		}
		for _, name := range []string{"ttl", "wait", "min-hold", "permits", "shared", "exclusive"} {
			if cmd.Flags().Changed(name) {
				return exit.Usagef("--tick and --%s exclude each other", name)
			}
		}
	}
	if cmd.Flags().Changed("lease") {
		for _, name := range []string{"key", "wait", "min-hold", "permits", "shared", "exclusive", "tick"} {
			if cmd.Flags().Changed(name) {
				return exit.Usagef("--lease and --%s exclude each other", name)
			}
		}
	}
	return checkPermits(cmd, o.permits)
}

const runHelp = `Run takes the lock, runs COMMAND, and releases the lock when the command has ended. The lock is renewed
meanwhile.

With several --key, run takes all of the locks or none. Programs that do that do not wait for each other in a circle.
The command is stopped if one of the locks is lost.

With --permits, as many commands run at a time as the key has permits. All who use a key should give the same number.
With --shared, commands run beside each other, and beside none that has --exclusive. Permits, shared locks and plain
locks of the same name have nothing to do with each other.

With --tick, run is for cron: all machines start it at the same times, and one of them runs the command. The tick is the
last multiple of the given time, in UTC, at which run was started: with 1m, the minute that has begun. Run exits with 75
if the tick was run elsewhere, runs there, or was interrupted by a crash, and if it was more than a minute ago.

With --lease, run goes on with the lock that locker acquire, or the step before, has left in the file. If the command
ends with 0, run passes the lock on again: it stays taken for the TTL, and there is a new lease in the file. Otherwise
run releases the lock and removes the file, so no later step works. So it is if the lock is lost, or if a signal ends
run. If run itself is killed, the lock ends with its TTL, and the lease in the file is of no use.

Run executes the words after -- without a shell. The command uses the standard input, output and error of locker, and
its exit code becomes the exit code of locker.

The command runs in its own process group. SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH and SIGTERM are passed on
to the group. After SIGTERM, processes that do not end within the grace period are killed. When the command ends,
processes that it leaves behind get SIGTERM, and SIGKILL after the grace period. Then the lock is released.

If the lock is lost, or if it cannot be renewed and is about to end, the command is stopped: by default with SIGTERM,
and with SIGKILL after the grace period. The grace period ends before the lock does, so the command no longer runs when
the next owner gets the lock. This holds even if locker itself is stopped or killed.

The command gets these environment variables:

  LOCKER_KEY     the key; with several locks, their names, one in each line
  LOCKER_FENCE   the fencing token (see docs/safety.md), 0 if there is none; with several locks, one in each line
  LOCKER_SLOT    with --permits, the number of the permit, from 0, which no other command has at the same time; with
                 --weight, one in each line
  LOCKER_STORE   the backend: memory, redis, redlock, etcd, postgres, nats, mysql, file, s3, dynamodb, kubernetes, or
                 another registered one
  LOCKER_TICK    with --tick, the tick, such as 2026-11-22T06:00:00Z
  LOCKER_FD      the number of a file descriptor that reaches end of file when the lock is lost; it delivers no data

Exit codes:

  the command's own, or 128 plus the number of the signal that ended it
  64      the command line is wrong
  65      the key holds something else; with --lease, the file
  66      with --lease, the file is missing, or cannot be read
  69      the server, or the quorum, is down, or refuses
  70, 71  a helper process was killed, or could not be started; with --lease, the file cannot be written
  75      somebody else has the lock; with --tick, the tick was claimed elsewhere, or it is too late for it
  78      the configuration is wrong
  79      the lock was lost, or --max-hold was reached, while the command ran; with --lease, the lease was used before,
          or the lock has ended: the command was not started
  126     the command cannot be executed
  127     the command was not found
  128+n   signal n arrived before the command was started`

// check validates the options and sets the defaults.
func (o *runOptions) check(c *config.Config) error {
	slices.Sort(o.Keys)
	o.Keys = slices.Compact(o.Keys)
	o.Key = strings.Join(o.Keys, ",")
	if o.tick > 0 {
		o.Tick = time.Now().Truncate(o.tick)
	}
	tooLong := func(key string) bool { return len(key) > locker.MaxKey }
	switch {
	case len(o.Keys) == 0 || o.Keys[0] == "":
		return exit.Usagef("no key: give one with --key")
	case slices.ContainsFunc(o.Keys, tooLong):
		return exit.Usagef("the key is longer than %d bytes", locker.MaxKey)
	case !slices.Contains([]string{supervise.Term, supervise.Kill, supervise.Notify}, o.OnLost):
		return exit.Usagef("--on-lost %q: it is term, kill or notify", o.OnLost)
	case o.tick > 0 && len(o.Keys) > 1:
		return exit.Usagef("--tick is for one --key")
	case o.permits > 0 && len(o.Keys) > 1:
		return exit.Usagef("--permits is for one --key")
	case o.permits > 0 && (o.weight < 1 || o.weight > o.permits):
		return exit.Usagef("--weight %d: it is from 1 to the %d permits", o.weight, o.permits)
	case o.shared && o.exclusive, (o.shared || o.exclusive) && o.permits > 0:
		return exit.Usagef("--shared, --exclusive and --permits exclude each other")
	case o.MinHold < 0 || o.MinHold > locker.MaxTTL:
		return exit.Usagef("--min-hold %v: it is from 0 to %v", o.MinHold, locker.MaxTTL)
	case o.MaxHold < 0 || o.MaxHold > 0 && o.MaxHold < locker.MinTTL:
		return exit.Usagef("--max-hold %v: it is %v at least", o.MaxHold, locker.MinTTL)
	}
	switch d, err := time.ParseDuration(o.wait); {
	case o.wait == "forever":
		o.MaxWait = -1
	case err != nil || d < 0:
		return exit.Usagef("--wait: invalid duration %q: use %s, 0 or forever", o.wait, seconds(o.wait))
	default:
		o.MaxWait = d
	}
	if err := o.checkTTL(time.Duration(c.TTL)); err != nil {
		return err
	}
	if len(o.Args) == 0 { // of acquire
		return nil
	}
	var err error
	o.Path, err = lookPath(o.Args[0])
	var e *exit.Error
	if errors.As(err, &e) && e.Code == exit.NotFound && !o.dashes {
		e.Next = "it was read as the command: put a key with spaces in quotes, and the command after --"
	}
	return err
}

// checkTTL sets the lease time and the grace period, which must fit into it. When a renewal begins, two thirds of the
// lease time are left, and a renewal may take a sixth.
func (o *runOptions) checkTTL(configured time.Duration) error {
	o.Validity = o.ttl
	if o.ttl == 0 {
		o.Validity = runTTL
		if configured != 0 && o.tick == 0 { // all machines need the same for a tick
			o.Validity = configured
		}
	}
	switch {
	case o.Validity < locker.MinTTL || o.Validity > locker.MaxTTL:
		return exit.Usagef("--ttl %v: it is from %v to %v", o.Validity, locker.MinTTL, locker.MaxTTL)
	case o.Grace < 0:
		o.Grace = min(runGrace, o.Validity/3)
		if o.MaxHold > 0 {
			o.Grace = min(o.Grace, o.MaxHold/2)
		}
	case o.Grace > o.Validity/2:
		return exit.Usagef("--grace %v is more than half of the TTL of %v: the rest is needed for renewals", o.Grace,
			o.Validity)
	case o.MaxHold > 0 && o.Grace >= o.MaxHold:
		return exit.Usagef("--grace %v is not less than --max-hold %v: the command would be stopped at once", o.Grace,
			o.MaxHold)
	}
	return nil
}

// lookPath finds the command before locker waits for the lock. Its errors have the exit codes that shells use.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot): // "." is in PATH: the user has chosen this
		return path, nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EISDIR):
		return "", exit.With(exit.NotRunnable, err, "is it executable?")
	}
	if !strings.Contains(name, "/") {
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) { // like shells, report a file that is not executable
			if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
				return "", exit.With(exit.NotRunnable, fmt.Errorf("%s: %w", filepath.Join(dir, name), fs.ErrPermission),
					"is it executable?")
			}
		}
	}
	return "", exit.With(exit.NotFound, err, "give its path, or look at PATH")
}

// supervise calls supervise.Run or supervise.Elect.
func (a *app) supervise(ctx context.Context, o *runOptions,
	do func(context.Context, *supervise.Options, func() (locker.Locker, error)) error,
) error {
	c, err := a.config()
	if err != nil {
		return err
	}
	if err := o.check(c); err != nil {
		return err
	}
	o.Store, o.Environ, o.Note = c.Backend, a.environ, a.note
	o.Explain = func(err error) string {
		text, next := a.explain(exit.Of(err))
		if next != "" {
			text += ": " + next
		}
		return text
	}
	return do(ctx, &o.Options, func() (locker.Locker, error) {
		l, err := a.open(ctx, c)
		if err != nil {
			return nil, err
		}
		a.opened = append(a.opened, l)
		if l.InProcess() {
			a.note("a lock in %s excludes nobody outside this process", c.Backend)
		}
		if o.permits > 0 {
			return semaphore.New(l, o.permits).Weight(o.weight), nil
		}
		if o.shared {
			return rwlock.New(l).Shared(), nil
		}
		if o.exclusive {
			return rwlock.New(l).Exclusive(), nil
		}
		return l, nil
	})
}
