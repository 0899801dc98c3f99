package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

// inspection reads a row of the columns that the functions inspect and force_release have in common.
func inspection(row pgx.Row, before ...any) (inspect.Inspection, error) {
	var owner, label *string
	var remaining, held, fence, waiting *int64
	if err := row.Scan(append(before, &owner, &label, &remaining, &held, &fence, &waiting)...); err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	i := inspect.Inspection{State: inspect.Free, Fence: uint64(*fence), Waiting: int(*waiting)}
	if owner == nil {
		return i, nil
	}
	i.State, i.Owner, i.Label = inspect.Held, *owner, *label
	i.Remaining = time.Duration(*remaining) * time.Microsecond
	i.Held = max(0, time.Duration(*held)*time.Microsecond)
	if i.Owner == "" {
		i.State = inspect.Kept
	}
	return i, nil
}

// Inspect implements [inspect.Inspector].
func (b *database) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	unknown := inspect.Inspection{State: inspect.Unknown}
	if err := b.enter(); err != nil {
		return unknown, err
	}
	defer b.background.Done()
	read := func(row pgx.Row) (inspect.Inspection, error) { return inspection(row) }
	i, err := request(ctx, b, read, b.sql.inspect, b.name(key))
	if err != nil {
		return unknown, unavailable(err)
	}
	return i, nil
}

// ForceRelease implements [inspect.Inspector].
func (b *database) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	unknown := inspect.Inspection{State: inspect.Unknown}
	if err := b.enter(); err != nil {
		return unknown, err
	}
	defer b.background.Done()
	type answer struct {
		inspect.Inspection
		done bool
	}
	read := func(row pgx.Row) (a answer, err error) {
		a.Inspection, err = inspection(row, &a.done)
		return a, err
	}
	a, err := request(ctx, b, read, b.sql.forceRelease, b.name(key), owner)
	switch {
	case err != nil:
		return unknown, unavailable(err)
	case !a.done:
		return a.Inspection, locker.ErrNotHeld
	}
	return a.Inspection, nil
}
