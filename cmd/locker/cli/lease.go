package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/cmd/locker/internal/supervise"
	"github.com/golocker/locker/transfer"
)

// passTTL is the default TTL of a lock that is passed on. It is for the time between two steps, too.
const passTTL = 10 * time.Minute

func acquireCommand(a *app) *cobra.Command {
	o := &runOptions{}
	o.OnLost, o.Grace = supervise.Term, -1
	var key, out string
	cmd := &cobra.Command{
		Use:     "acquire --key KEY --out FILE [flags]",
		GroupID: groupUse,
		Short:   "Take a lock for the steps of a pipeline, which run later",
		Long: `Acquire takes the lock and writes a lease into a new file. The lock stays taken when acquire has ended, for
the TTL, and nobody renews it. Each step of a pipeline then begins with locker run --lease FILE, which renews the lock
while it runs and passes it on to the next step, and the last one is locker release --lease FILE.

The file is a secret: whoever can read it can take the lock. Only its owner can (mode 0600). A lease in a file can be
used once, and run writes a new one. A copy is of no use when another one was used.

If the file cannot be written, the lock is released. If a step does not begin within the TTL, the lock ends, and no
later step works.

The store has to be one that can pass locks on: Redis, files, MySQL, S3, DynamoDB or Kubernetes.

Exit codes are those of locker run before the command is started.`,
		Example: `  locker acquire --key deploy --ttl 10m --out lease
  locker run --lease lease -- ./migrate
  locker run --lease lease -- ./restart
  locker release --lease lease`,
		Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Keys = []string{key}
			p := &passing{app: a, file: out, fresh: true}
			if out == "" {
				return exit.Usagef("no file: give the name of a new one with --out")
			}
			if err := p.writable(); err != nil {
				return err
			}
			return p.supervise(cmd.Context(), o, supervise.Acquire)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&key, "key", "k", "", "the `name` of the lock")
	flags.StringVarP(&out, "out", "o", "", "the new `file` for the lease")
	durationVar(flags, &o.ttl, "ttl", "for how long the lock stays taken until the first step begins (10m)")
	waitVar(cmd, &o.wait)
	for _, name := range []string{"key", "ttl"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

// passing is a lease in a file, which commands pass on to each other.
type passing struct {
	*app
	file  string
	fresh bool // the file must not exist
	text  transfer.Text
	ttl   time.Duration
	l     locker.Locker
	used  bool // the lease in the file can be used no more
}

// resume runs a command with the lock of a lease in a file.
func (a *app) resume(ctx context.Context, file string, o *runOptions) error {
	p := &passing{app: a, file: file}
	if err := p.read(); err != nil {
		return err
	}
	o.Keys, o.Take = []string{p.text.Key()}, p.take
	err := p.supervise(ctx, o, supervise.Run)
	if err != nil && p.used {
		_ = os.Remove(file)
	}
	return err
}

// supervise calls do, and has it pass the lock on.
func (p *passing) supervise(ctx context.Context, o *runOptions,
	do func(context.Context, *supervise.Options, func() (locker.Locker, error)) error,
) error {
	if o.ttl == 0 {
		o.ttl = passTTL
	}
	p.ttl, o.Pass = o.ttl, p.pass
	return p.app.supervise(ctx, o, func(
		ctx context.Context, so *supervise.Options, open func() (locker.Locker, error),
	) error {
		return do(ctx, so, func() (locker.Locker, error) {
			l, err := open()
			if err == nil {
				p.l, err = l, able(l)
			}
			return l, err
		})
	})
}

// able returns an error if the store cannot pass locks on: before anybody waits for one.
func able(l locker.Locker) error {
	c, ok := locker.As[backend.Capable](l)
	within, _ := l.(interface{ InProcess() bool })
	if ok && c.Capabilities().Export && (within == nil || !within.InProcess()) {
		return nil
	}
	return exit.With(exit.Config, errors.New("this store cannot pass a lock on to another process"),
		"the column Export in docs/backends/README.md says which stores can")
}

// take resumes the lock.
func (p *passing) take(ctx context.Context, l locker.Locker, opts ...locker.Option) (locker.Lease, error) {
	lease, err := transfer.Resume(ctx, l, p.text, opts...)
	p.used = err == nil
	of := strconv.Quote(p.text.Key())
	switch {
	case errors.Is(err, transfer.ErrUsed):
		err = exit.With(exit.Lost, fmt.Errorf("%s: somebody else has the lock %s: the lease in the file was used before, "+
			"or has come too late", p.file, of), "run the pipeline again, from locker acquire on")
	case errors.Is(err, transfer.ErrEnded):
		err = exit.With(exit.Lost, fmt.Errorf("%s: nobody has the lock %s any more: its TTL is over, or it was released, "+
			"or is in another store than the one configured here", p.file, of), "run the pipeline again, from locker acquire on")
	}
	return lease, err
}

// pass writes the lease into the file, or releases the lock.
func (p *passing) pass(lease locker.Lease) error {
	ctx := context.Background()
	text, err := transfer.Export(ctx, lease, p.ttl)
	if text == (transfer.Text{}) {
		_ = lease.Unlock(ctx)
		return err
	}
	if err := p.write(text); err != nil {
		next := "the lock was released"
		if lease, err := transfer.Resume(ctx, p.l, text); err != nil || lease.Unlock(ctx) != nil {
			next = fmt.Sprintf("the lock ends within %v", p.ttl)
		}
		return exit.With(exit.OSErr, err, next)
	}
	p.note("%q stays locked for %v, for the next step: the lease is in %s", lease.Key(), p.ttl, p.file)
	return err
}

// read reads the lease in the file.
func (p *passing) read() error {
	secret, err := os.ReadFile(p.file)
	if err != nil {
		next := "an earlier step has failed, or the lease was released"
		if !errors.Is(err, fs.ErrNotExist) {
			next = ""
		}
		return exit.With(exit.NoInput, err, next)
	}
	if p.text, err = transfer.Parse(string(secret)); err != nil {
		return exit.With(exit.Data, fmt.Errorf("%s: %w", p.file, err), "")
	}
	return p.writable()
}

// writable returns an error if the file could not be written.
func (p *passing) writable() error {
	_, missing := os.Lstat(p.file)
	switch info, err := os.Stat(p.file); {
	case p.file == "-", err == nil && !info.Mode().IsRegular():
		return exit.Usagef("%s: the lease is a secret, and is written to an ordinary file only", p.file)
	case missing == nil && p.fresh:
		return exit.Usagef("%s exists: if a lease in it is not needed any more, use locker release --lease", p.file)
	}
	f, err := p.temporary()
	if err != nil {
		return exit.With(exit.OSErr, err, "")
	}
	_ = f.Close()
	return os.Remove(f.Name())
}

// temporary makes a file beside that of the lease, which only its owner can read.
func (p *passing) temporary() (*os.File, error) {
	f, err := os.CreateTemp(filepath.Dir(p.file), "."+filepath.Base(p.file)+".*")
	var failed *fs.PathError
	if errors.As(err, &failed) { // it has a name that nobody knows
		err = fmt.Errorf("cannot write %s: %w", p.file, failed.Err)
	}
	return f, err
}

// write writes a lease into the file: all of it, or nothing.
func (p *passing) write(text transfer.Text) error {
	f, err := p.temporary()
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.WriteString(text.Secret() + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if p.fresh {
		return os.Link(f.Name(), p.file) // unlike Rename, it replaces nothing
	}
	return os.Rename(f.Name(), p.file)
}

// releaseLease releases the lock of a lease in a file.
func (a *app) releaseLease(cmd *cobra.Command, file string) error {
	for _, name := range []string{"token", "permits"} {
		if cmd.Flags().Changed(name) {
			return exit.Usagef("--lease and --%s exclude each other", name)
		}
	}
	p := &passing{app: a, file: file}
	if err := p.read(); err != nil {
		return err
	}
	ctx := cmd.Context()
	l, err := a.store(ctx)
	if err == nil {
		err = able(l)
	}
	if err != nil {
		return err
	}
	lease, err := p.take(ctx, l)
	if err != nil {
		return err
	}
	gone := os.Remove(file) // it is of no use any more
	switch err := lease.Unlock(ctx); {
	case err != nil:
		return exit.With(exit.Of(err).Code, err, "the lock ends by itself")
	case gone != nil:
		return exit.With(exit.OSErr, gone, "the lock was released")
	case a.json:
		return a.printJSON(releaseJSON{Key: lease.Key(), Released: true})
	case !a.quiet:
		fmt.Fprintf(a.stdout, "released %q\n", lease.Key())
	}
	return nil
}
