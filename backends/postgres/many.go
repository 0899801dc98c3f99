package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
)

// maxStep is how many locks are acquired in one step at most. For each of them, the transaction has an entry in the
// server's lock table until it ends. All users of the server share that table, and a table that is full fails their
// statements. It has room for 64 entries (max_locks_per_transaction) for each connection that the server allows.
const maxStep = 64

var errStep = fmt.Errorf("more than %d locks are not acquired in one step: %w", maxStep, errors.ErrUnsupported)

// AcquireMany implements [locker.ManyAcquirer], in one transaction, for up to 64 locks.
func (b *Backend) AcquireMany(ctx context.Context, reqs []locker.Request) ([]locker.Grant, error) {
	if len(reqs) > maxStep {
		return nil, errStep
	}
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.background.Done()
	names, tokens := make([][]byte, len(reqs)), make([]string, len(reqs))
	for i, req := range reqs {
		names[i], tokens[i] = b.name(req.Key), req.Token
	}
	type answer struct {
		fences  []int64
		refused *int // counts from 1; nil: all locks are granted
		attempt      // of the lock that is refused
	}
	read := func(row pgx.Row) (a answer, err error) {
		var remaining *int64
		var label *string
		err = row.Scan(&a.fences, &a.refused, &remaining, &label)
		a.set(nil, remaining, label)
		return a, err
	}
	a, err := request(ctx, b.database, read, b.sql.acquireMany,
		names, tokens, reqs[0].Label, microseconds(reqs[0].TTL))
	switch {
	case err != nil:
		for i, req := range reqs {
			b.undo(names[i], req.Token, "", req.TTL, err)
		}
		return nil, unavailable(err)
	case a.refused != nil:
		return nil, &locker.Error{Op: "trylock", Key: reqs[*a.refused-1].Key, Err: &a.held}
	}
	grants := make([]locker.Grant, len(reqs))
	for i, fence := range a.fences {
		grants[i].Fence = uint64(fence)
	}
	return grants, nil
}
