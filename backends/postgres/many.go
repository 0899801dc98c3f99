package postgres

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/golocker/locker"
)

// AcquireMany implements [locker.ManyAcquirer], in one transaction.
func (b *Backend) AcquireMany(ctx context.Context, reqs []locker.Request) ([]locker.Grant, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.background.Done()
	names, tokens := make([][]byte, len(reqs)), make([]string, len(reqs))
	for i, req := range reqs {
		names[i], tokens[i] = b.name(req.Key), req.Token
	}
	read := func(row pgx.Row) (fences []int64, err error) {
		err = row.Scan(&fences)
		return fences, err
	}
	fences, err := request(ctx, b.database, read, b.sql.acquireMany,
		names, tokens, reqs[0].Label, microseconds(reqs[0].TTL))
	if unknown(err) {
		for i, req := range reqs {
			b.undo(names[i], req.Token, "", req.TTL, true)
		}
	}
	if err != nil {
		return nil, refusal(err, reqs)
	}
	grants := make([]locker.Grant, len(reqs))
	for i, fence := range fences {
		grants[i].Fence = uint64(fence)
	}
	return grants, nil
}

// refusal returns the error for an answer that names a lock that is held: its number, the remaining microseconds and
// the label, with | between them.
func refusal(err error, reqs []locker.Request) error {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) || answer.Code != "LKHLD" {
		return unavailable(err)
	}
	number, rest, _ := strings.Cut(answer.Detail, "|")
	remaining, label, _ := strings.Cut(rest, "|")
	i, _ := strconv.Atoi(number)
	left, _ := strconv.ParseInt(remaining, 10, 64)
	if i < 1 || i > len(reqs) {
		return unavailable(err)
	}
	held := &locker.HeldError{Remaining: time.Duration(left) * time.Microsecond, Label: label}
	return &locker.Error{Op: "trylock", Key: reqs[i-1].Key, Err: held}
}
