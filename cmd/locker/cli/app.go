// Package cli is the command locker. To build a command that supports another backend or driver, import it in a program
// of two lines:
//
//	import _ "example.com/etcdlock" // calls config.Register
//
//	func main() { cli.Main() }
//
// Such a program knows S3, DynamoDB and Kubernetes only if it imports their packages as well, because their clients are
// large.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/golocker/locker"
	_ "github.com/golocker/locker/backends/etcdlock" // the other stores that a URL may name, besides those of migrate.go
	_ "github.com/golocker/locker/backends/filelock"
	_ "github.com/golocker/locker/backends/natslock"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/cmd/locker/internal/supervise"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all" // the Redis clients that a URL may name
	_ "github.com/golocker/locker/drivers/valkeydriver"
)

// Main runs the command with the arguments, the environment and the streams of the process, and ends the process. Call
// it first in main: "locker run" starts the same program again, with a special argument, as the guard of its command.
func Main() {
	supervise.Main(os.Args)
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ()}
	os.Exit(a.main(context.Background(), os.Args[1:]))
}

// app has the state that all commands share: the streams, the environment and the global flags. Tests make a new app
// for every call.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string

	url     string
	file    string
	json    bool
	quiet   bool
	noColor bool

	started bool           // the command line was parsed: later errors are not usage errors
	opened  []io.Closer    // closed when the result is known
	used    *config.Config // the configuration in use; nil if no server was contacted

	fellBack sync.Once // says that there is no configuration
}

// main runs the command line and returns the exit code. Commands report what went wrong by returning an error; only
// here are errors printed.
func (a *app) main(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(append([]string{}, args...)) // for nil it would take those of the process
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !a.started {
		a.findJSON(args)
		err = &exit.Error{Code: exit.Usage, Err: err, Next: "see " + cmd.CommandPath() + " --help"}
	}
	closed, late := make(chan struct{}), time.After(closeLimit)
	go func() {
		defer close(closed)
		for _, c := range a.opened {
			_ = c.Close()
		}
	}()
	code := a.report(err)
	select {
	case <-closed:
	case <-late:
	}
	return code
}

// closeLimit is how long the command takes after its result is known, for Close and for the diagnosis of an error,
// which go on at the same time. Without it, Close would wait some seconds more for a server that does not answer.
const closeLimit = 2 * time.Second

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		SuggestionsMinimumDistance: 2, // for SuggestionsFor

		Use:   "locker",
		Short: "Distributed locks for people, scripts and cron jobs",
		Long: `locker takes locks in files, on Redis, on a Redlock over several independent Redis servers, on etcd,
PostgreSQL, NATS, MySQL, S3, DynamoDB or Kubernetes, and shows the state of locks and servers.

It uses the same configuration as programs that use the library. Choose the locks with --url, or with a file and the
environment. Without any of these, they are those of this user on this machine, in files.

  --url URL      redis://[user:password@]host[:6379][/db][?ttl=30s&prefix=x:…]
                 redis+goredis://…  redis+redigo://…  redis+rueidis://…
                 redis+valkey://…
                 redis+sentinel://s1[:26379],s2,…/master
                 redis+cluster://h1[:6379],h2,…
                 unix:///path/of.sock
                 redlock://[user:password@]host1,host2,host3[?…]
                 etcd://[user:password@]host1[:2379],host2,host3[?…]
                 postgres://[user:password@]host[:5432]/database[?sslmode=…]
                 nats://[user:password@]host1[:4222],host2,host3[?…]
                 mysql://[user:password@]host[:3306]/database[?…]
                 file:/path/of/directory
                 s3://bucket/folder[?region=…]
                 dynamodb://table[?region=…]
                 kubernetes://namespace[?kubeconfig=…]
                 with TLS: rediss:// rediss+… redlocks:// etcds:// natss://
                 mysqls://
  --config FILE  YAML; variables of the environment override it
  LOCKER_URL     replaces the file; LOCKER_TTL, LOCKER_REDIS_PASSWORD and so on
                 override both

With --url, locker ignores the file and the environment. All users of a machine can see the arguments of a program, so
put passwords in LOCKER_URL, LOCKER_REDIS_PASSWORD or a password_file.`,
		Example: `  export LOCKER_URL=redis://localhost
  locker run --key backup --wait 0 -- /usr/local/bin/backup --all
  locker config check`,
		Args:          noCommand,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []string{"url", "config", "token", "lease", "out"} { // probably an unset variable in a script
				if f := cmd.Flag(name); f != nil && f.Changed && f.Value.String() == "" {
					return fmt.Errorf("--%s is empty", name)
				}
			}
			a.started = true
			slog.SetDefault(slog.New(&logHandler{a}))
			return nil
		},
		RunE:    help,
		Version: readBuildInfo().Version, // for --version
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout) // before the completion command is made, which stores the writer
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(nearFlag)
	root.SetVersionTemplate(readBuildInfo().String())
	flags := root.PersistentFlags()
	flags.StringVar(&a.url, "url", "", "which locks, as a `URL`; the file and the environment are ignored")
	flags.StringVar(&a.file, "config", "", "which locks, as a YAML `file`; the environment overrides it")
	flags.BoolVar(&a.json, "json", false, "print JSON, errors included")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "print results and errors, and nothing else")
	flags.BoolVar(&a.noColor, "no-color", false, "no colours (NO_COLOR in the environment says the same)")
	_ = root.MarkPersistentFlagFilename("config", "yaml", "yml", "json")
	root.AddGroup(&cobra.Group{ID: groupUse, Title: "Locks:"}, &cobra.Group{ID: groupLook, Title: "Deployment:"})
	root.SetHelpCommandGroupID(groupOther)
	root.SetCompletionCommandGroupID(groupOther)
	root.AddGroup(&cobra.Group{ID: groupOther, Title: "Other:"})
	root.AddCommand(
		runCommand(a),
		electCommand(a),
		acquireCommand(a),
		lsCommand(a),
		inspectCommand(a),
		releaseCommand(a),
		watchCommand(a),
		doctorCommand(a),
		bootstrapCommand(a),
		migrateCommand(a),
		tokensCommand(a),
		conformCommand(a),
		judgeCommand(a),
		configCommand(a),
		devCommand(a),
		versionCommand(a),
	)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	wrapHelp(root, columns(a.stdout))
	for _, cmd := range root.Commands() { // cobra's own commands print help, and report success, for unknown arguments
		switch cmd.Name() {
		case "help":
			cmd.Args = topic
		case "completion":
			cmd.Args, cmd.RunE = noCommand, help
		}
	}
	return root
}

// The groups in which help shows the commands.
const (
	groupUse   = "use"
	groupLook  = "look"
	groupOther = "other"
)

func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// topic checks that the argument of help is a command.
func topic(cmd *cobra.Command, args []string) error {
	cmd, rest, err := cmd.Root().Find(args)
	if err != nil {
		return err
	}
	return noCommand(cmd, rest)
}

// oneKey checks the arguments of commands that take one key.
func oneKey(_ *cobra.Command, args []string) error {
	switch {
	case len(args) == 0 || args[0] == "":
		return errors.New("no key: give the key of the lock")
	case len(args[0]) > locker.MaxKey:
		return fmt.Errorf("the key is longer than %d bytes", locker.MaxKey)
	case len(args) > 1:
		return fmt.Errorf("unexpected argument %q: one key at a time; a key with spaces needs quotes", args[1])
	}
	return nil
}

// noCommand is for commands that have only subcommands: any argument is a mistake.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return fmt.Errorf("unknown command %q: did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// nearFlag adds to the error for an unknown flag which one may be meant.
func nearFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	names := &cobra.Command{SuggestionsMinimumDistance: 2} // cobra compares only names of commands
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		names.AddCommand(&cobra.Command{Use: f.Name, Hidden: f.Hidden, Run: func(*cobra.Command, []string) {}})
	})
	if near := names.SuggestionsFor(unknown.GetSpecifiedName()); len(near) > 0 {
		return fmt.Errorf("%w: did you mean --%s?", err, strings.Join(near, " or --"))
	}
	return err
}

// findJSON finds --json in a command line that could not be parsed.
func (a *app) findJSON(args []string) {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	a.json = a.json || slices.Contains(args, "--json")
}

// getenv returns the last value of a variable.
func (a *app) getenv(name string) (value string) {
	for _, kv := range a.environ {
		if n, v, _ := strings.Cut(kv, "="); n == name {
			value = v
		}
	}
	return value
}

// config returns the configuration from the flags and the environment.
func (a *app) config() (*config.Config, error) {
	var c *config.Config
	var err error
	switch {
	case a.url != "" && a.file != "":
		return nil, exit.Usagef("--url and --config are given: use only one of them")
	case a.url != "":
		c, err = config.Parse(a.url)
	case a.file != "":
		c, err = config.Load(a.file, a.environ...)
	case a.unconfigured() && a.fallback() != "":
		a.fellBack.Do(func() { // even with --quiet: on several machines, the command would run on each
			fmt.Fprintf(a.stderr, "locker: no configuration: the locks are those of this user on this machine, %s: "+
				"set LOCKER_URL to that, or to a store that other machines and containers reach\n", a.fallback())
		})
		c, err = config.Parse(a.fallback())
	default:
		c = new(config.Config)
		if err = c.Overlay(a.environ); err != nil && a.getenv("LOCKER_URL") == "" && a.getenv("LOCKER_BACKEND") == "" {
			if a.unconfigured() {
				err = errors.New("no configuration, and no home directory for locks in files")
			}
			const next = "set LOCKER_URL, for example to redis://localhost, or use --url or --config"
			return nil, exit.With(exit.Config, err, next)
		}
	}
	if err != nil {
		return nil, exit.With(exit.Config, err, "see locker --help for the forms")
	}
	return c, nil
}

// unconfigured reports whether nothing says which locks are meant. What run sets for its command says nothing of that.
func (a *app) unconfigured() bool {
	set := func(kv string) bool {
		name, value, _ := strings.Cut(kv, "=")
		return strings.HasPrefix(name, "LOCKER_") && value != "" && !slices.Contains(supervise.Variables, name)
	}
	return a.url == "" && a.file == "" && !slices.ContainsFunc(a.environ, set)
}

// fallback returns the URL of the locks of a command that has no configuration: those of this user on this machine, in
// files. It is empty if the user has no home directory, as some services have none.
//
// The directory is not a temporary one: what cleans up would delete locks. And it is not one that users share, because
// each of them could take the locks of the others, or put something else there.
func (a *app) fallback() string {
	dir := a.getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) { // as its specification demands
		if dir = a.getenv("HOME"); !filepath.IsAbs(dir) {
			return ""
		}
		dir = filepath.Join(dir, ".local", "state")
	}
	return (&url.URL{Scheme: "file", Path: filepath.Join(dir, "locker")}).String()
}

// open returns the Locker that c describes. The caller closes it, or adds it to opened for main.
func (a *app) open(ctx context.Context, c *config.Config, opts ...locker.Option) (*config.Opened, error) {
	l, err := c.Open(ctx, opts...)
	if err != nil && !errors.Is(err, locker.ErrUnavailable) {
		next := ""
		if a.unconfigured() { // the home directory is not what it seems
			next = "set LOCKER_URL, for example to file:///var/lib/jobs or redis://localhost"
		}
		return nil, exit.With(exit.Config, err, next)
	}
	a.used = c
	return l, err
}

// askTimeout is how long commands that only ask wait for an answer, unless the configuration has a timeout. Programs
// that hold locks wait for 5 s, because for them it is worth while.
const askTimeout = 3 * time.Second

// hurry sets the timeout of c to askTimeout, if it has none. Backends without a timeout stay as they are.
func hurry(c *config.Config) {
	_, params, _ := strings.Cut(c.String(), "?")
	if given, _ := url.ParseQuery(params); !given.Has("timeout") {
		_ = c.Overlay([]string{"LOCKER_" + strings.ToUpper(c.Backend) + "_TIMEOUT=" + askTimeout.String()})
	}
}
