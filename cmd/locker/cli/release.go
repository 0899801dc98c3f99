package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/label"
)

func releaseCommand(a *app) *cobra.Command {
	var token, lease string
	var yes bool
	var permits int
	cmd := &cobra.Command{
		Use:     "release KEY | --lease FILE",
		GroupID: groupUse,
		Short:   "Take a lock away from its owner, or end a pipeline",
		Long: `Release takes a lock away from its owner by force, hands it to the next waiter, and reports the former
owner. It is for an owner that hangs. It does not stop the owner, which believes until its next renewal that it has the
lock: two programs may work at the same time. Stop the owner first if you can.

On a terminal, release shows the owner, asks for confirmation, and takes the lock from that owner only. Without a
terminal it requires --yes, and takes the lock from any owner. With --token it takes the lock only from the owner with
that token. The first characters of the token, as locker inspect shows them, are enough. They are also safer, because
other users can see the arguments of a program.

With --permits, release takes the permit whose owner has the token, which has to be given. If the first waiter has the
token, release takes the gate from it. Locks of readers and writers are released one by one, by the names that locker
inspect --shared shows, and with --token if several have the key.

It exits with 0 if the lock was taken or was free, and with 75 if another owner has it. With --permits, it exits with 75
if no permit has that owner.

With --lease, release is the last step of a pipeline: it releases the lock that locker acquire, or the step before, has
left in the file, and removes the file. It asks nothing. It exits with 66 if there is no such file, and with 79 if the
lease was used before, or the lock has ended: then something else may have had the lock meanwhile.`,
		Example: `  locker release backup
  locker release backup --token 3Vd9kzLq --yes
  locker release export --permits 3 --token 3Vd9kzLq
  locker release --lease lease`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case !cmd.Flags().Changed("lease"):
				return oneKey(cmd, args)
			case len(args) > 0:
				return fmt.Errorf("unexpected argument %q: --lease says which lock is meant", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("lease") {
				return a.releaseLease(cmd, lease)
			}
			if err := checkPermits(cmd, permits); err != nil {
				return err
			}
			return a.release(cmd.Context(), args[0], permits, token, yes)
		},
	}
	cmd.Flags().StringVar(&token, "token", "", "take the lock only if the owner's `token` begins with this")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	permitsVar(cmd, &permits, "the `number` of permits that the key has, instead of one lock")
	cmd.Flags().StringVar(&lease, "lease", "", "the `file` with the lock, of locker acquire or of the last step")
	return cmd
}

// minToken is the smallest length of --token. Shorter ones could match several owners.
const minToken = 4

func (a *app) release(ctx context.Context, key string, permits int, token string, yes bool) error {
	if permits > 0 && token == "" {
		return exit.Usagef("--permits needs --token: locker inspect --permits shows the owners")
	}
	if token != "" {
		token = strings.TrimSuffix(token, "…") // as inspect shows it
		if len(token) < minToken {
			return exit.Usagef("--token: give at least the first %d characters of the token", minToken)
		}
	}
	if !yes && !isTerminal(a.stdin) {
		return errNobodyToAsk
	}
	l, i, err := a.inspector(ctx)
	if err != nil {
		return err
	}
	if permits > 0 {
		if key, err = permitOf(ctx, l, i, key, permits, token); err != nil {
			return err
		}
	}
	if !yes {
		seen, err := i.Inspect(ctx, key)
		switch {
		case err != nil:
			return err
		case seen.State == inspect.Free:
			return a.released(key, seen, a.whyFree(ctx, l, i, key, permits))
		case seen.State != inspect.Foreign:
			for _, owner := range seen.Holders {
				if begins(owner, token) {
					seen = owner
					break
				}
			}
			if token == "" || !strings.HasPrefix(token, seen.Owner) {
				token = seen.Owner
			}
			if err := a.confirm(key, seen); err != nil {
				return err
			}
		}
	}
	seen, err := i.ForceRelease(ctx, key, token)
	if errors.Is(err, locker.ErrNotHeld) && seen.State == inspect.Free {
		err = a.whyFree(ctx, l, i, key, permits)
	}
	return a.released(key, seen, err)
}

// whyFree returns errFree, or an error if only the plain lock of key is free.
func (a *app) whyFree(
	ctx context.Context, l locker.Locker, i inspect.Inspector, key string, permits int,
) error {
	if permits > 0 {
		return errFree
	}
	kinds, err := kindsOf(ctx, l, i, key)
	if err != nil || len(kinds) == 0 {
		return errFree
	}
	err = fmt.Errorf("the plain lock %s is free, and %s have the key: nothing was released", strconv.Quote(key),
		kinds[0].name)
	if kinds[0].name == "permits" {
		return exit.With(exit.Held, err, "use "+kinds[0].flags+", and --token")
	}
	return exit.With(exit.Held, err, "release one of "+strings.Join(kinds[0].locks, ", "))
}

// permitOf returns the name of the lock whose owner has the token, among those of a key with permits.
func permitOf(
	ctx context.Context, l locker.Locker, i inspect.Inspector, key string, permits int, token string,
) (string, error) {
	found := ""
	for _, lock := range locksOf(l, key, permits) {
		seen, err := i.Inspect(ctx, lock)
		if err != nil {
			return "", err
		}
		for _, owner := range holders(seen) {
			switch {
			case !begins(owner, token):
			case found != "":
				return "", exit.Usagef("--token: several permits have an owner whose token begins with this")
			default:
				found = lock
			}
		}
	}
	if found == "" {
		err := fmt.Errorf("no permit of %s has an owner with this token", strconv.Quote(key))
		return "", exit.With(exit.Held, err, "locker inspect --permits shows the owners")
	}
	return found, nil
}

// holders returns who has permits of a group, or the lock itself.
func holders(seen inspect.Inspection) []inspect.Inspection {
	if seen.Holders != nil {
		return seen.Holders
	}
	return []inspect.Inspection{seen}
}

// begins reports whether the token of an owner begins with token, as far as is shown of it.
func begins(owner inspect.Inspection, token string) bool {
	return owner.Owner != "" && (strings.HasPrefix(owner.Owner, token) || strings.HasPrefix(token, owner.Owner))
}

// exitRefused is the exit code if the user declines.
const exitRefused = 1

var errFree = errors.New("it is free")

// confirm asks whether to take the lock from the owner that was seen.
func (a *app) confirm(key string, seen inspect.Inspection) error {
	a.printInspection(key, seen)
	return a.ask("\nIts owner is not stopped by this and may go on until it notices. Take the lock?", errNobodyToAsk,
		errors.New("nothing was released"))
}

// ask returns nil if the user answers with yes. It returns nobody if there is no answer, and refused otherwise.
func (a *app) ask(question string, nobody, refused error) error {
	fmt.Fprintf(a.stdout, "%s [y/N] ", question)
	answer, err := bufio.NewReader(a.stdin).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	case "":
		if err != nil { // /dev/null counts as a terminal
			return nobody
		}
	}
	return &exit.Error{Code: exitRefused, Err: refused}
}

var errNobodyToAsk = exit.Usagef("there is no terminal for the confirmation: use --yes to take the lock from its owner")

// released reports the result.
func (a *app) released(key string, seen inspect.Inspection, err error) error {
	switch {
	case errors.Is(err, errFree):
		if a.json {
			return a.printJSON(releaseJSON{Key: key})
		}
		a.note("%s is free: there is nothing to release", strconv.Quote(key))
		return nil
	case errors.Is(err, locker.ErrNotHeld):
		return exit.With(exit.Held, err, "locker inspect shows who has it now")
	case errors.Is(err, locker.ErrInvalid) && len(seen.Holders) > 1:
		return exit.With(exit.Usage, err, "name one of them with --token: locker inspect shows them")
	case errors.Is(err, locker.ErrUnavailable) && !refused(err):
		return exit.With(exit.Unavailable, err,
			"it is not known whether the lock was released: when the server answers, locker inspect shows it")
	case err != nil:
		return err
	case a.json:
		return a.printJSON(releaseJSON{Key: key, Released: true, From: lockOf("", seen)})
	case a.quiet:
		return nil
	}
	from := seen.Owner + "…"
	if seen.Label != "" {
		from = label.Show(seen.Label) + " (" + from + ")"
	}
	if seen.State == inspect.Kept {
		from = "nobody: it was kept by --min-hold, after " + from
	}
	if held := heldFor(seen); held != "" {
		from += ", who had it for " + held
	}
	what := strconv.Quote(key)
	if len(seen.Permits) > 0 {
		what = fmt.Sprintf("%s of %s", numbers(seen.Permits), what)
	}
	fmt.Fprintf(a.stdout, "released %s, taken from %s\n", what, from)
	for _, n := range seen.Nodes {
		if n.Err != nil {
			a.note("%s did not answer: the lock ends there with its TTL (%v)", n.Name, n.Err)
		}
	}
	return nil
}

type releaseJSON struct {
	Key      string   `json:"key"`
	Released bool     `json:"released"`
	From     lockJSON `json:"from,omitzero"`
}
