package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/inspect"
)

func tokensCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		SuggestionsMinimumDistance: 2,

		Use:     "tokens",
		GroupID: groupLook,
		Short:   "Raise the fencing tokens of a store",
		Args:    noCommand,
		RunE:    help,
	}
	var past uint64
	raise := &cobra.Command{
		Use:   "raise",
		Short: "Make all tokens that are granted from now on greater than a number",
		Long: `Raise is for a program that is about to use another store of locks, while its resource keeps the greatest
token that it has seen. Stop the program, raise the tokens of the new store, and start the program with the new store.

Tokens of all stores begin at the microseconds of a clock, so by default tokens are raised past the present time of this
machine. If the clocks of the stores differ, or if the old store's tokens are ahead of its clock, give the greatest
token that the resource has seen with --past.

It raises the tokens of all locks of the prefix, schema or bucket, and never lowers one. On Redis it writes 16,384 small
keys, 1.6 MB, to each server. On a Redlock, a majority of the servers has to answer. If it did not get the answers that
it needs, run it again.

In files, S3, DynamoDB, Kubernetes and MySQL, tokens follow the clocks of the programs, and need no raise. It succeeds
there if the clock of this machine is past the number, or will be in seconds, and otherwise says when that will be.

In NATS, tokens cannot be raised while there are locks. Give the program a new bucket.`,
		Example: `  locker tokens raise --url postgres://operator@db1/app
  locker tokens raise --past $(psql -Atc "SELECT max(fence) FROM account")`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("past") {
				past = uint64(time.Now().UnixMicro())
			}
			return a.raiseTokens(cmd.Context(), past)
		},
	}
	raise.Flags().Uint64Var(&past, "past", 0, "the `token` that all later ones are to be greater than")
	raise.Flag("past").DefValue = "" // the present time
	_ = raise.RegisterFlagCompletionFunc("past", cobra.NoFileCompletions)
	cmd.AddCommand(raise)
	return cmd
}

func (a *app) raiseTokens(ctx context.Context, past uint64) error {
	l, err := a.store(ctx)
	if err != nil {
		return err
	}
	r, ok := locker.As[inspect.FenceRaiser](l)
	if !ok {
		return errors.New("the backend cannot raise its tokens")
	}
	switch err := r.RaiseFences(ctx, past); {
	case errors.Is(err, locker.ErrInvalid):
		return exit.With(exit.Usage, err, "")
	case errors.Is(err, errors.ErrUnsupported):
		return exit.With(exit.Config, err, "")
	case err != nil:
		return exit.With(exit.Unavailable, err, "some tokens may have been raised: run it again when this is mended")
	case a.json:
		return a.printJSON(struct {
			Past uint64 `json:"past"`
		}{past})
	case !a.quiet:
		fmt.Fprintf(a.stdout, "tokens that are granted from now on are greater than %d\n", past)
	}
	return nil
}
