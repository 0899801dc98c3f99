package postgreslock

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
)

// owner is what the function inspect_all says of one.
type owner struct {
	Owner, Label    string
	Kept            bool
	Remaining, Held int64
	Fence           uint64
	Kind            backend.Kind
	Numbers         []int
}

func (o owner) inspection() inspect.Inspection {
	i := inspect.Inspection{
		State: inspect.Held, Owner: o.Owner, Label: o.Label, Fence: o.Fence, Kind: o.Kind.String(),
		Remaining: time.Duration(o.Remaining) * time.Microsecond, Held: max(0, time.Duration(o.Held)*time.Microsecond),
	}
	if len(o.Numbers) > 0 {
		i.Permits = o.Numbers
	}
	if o.Kept {
		i.State = inspect.Kept
	}
	return i
}

// inspection reads a row of the columns that the functions inspect_all and force have in common.
func inspection(row pgx.Row, before ...any) (inspect.Inspection, error) {
	var grouped *bool
	var owners []owner
	var fence, waiting int64
	if err := row.Scan(append(before, &grouped, &owners, &fence, &waiting)...); err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	i := inspect.Inspection{State: inspect.Free, Fence: uint64(fence)}
	if len(owners) > 0 {
		i = owners[0].inspection()
	}
	if grouped != nil && *grouped {
		for _, o := range owners {
			i.Holders = append(i.Holders, o.inspection())
		}
	}
	i.Waiting = int(waiting)
	return i, nil
}

// inspect asks for the lock or the group with that name.
func (b *store) inspect(ctx context.Context, name []byte) (inspect.Inspection, error) {
	unknown := inspect.Inspection{State: inspect.Unknown}
	if err := b.enter(); err != nil {
		return unknown, err
	}
	defer b.calls.Done()
	read := func(row pgx.Row) (inspect.Inspection, error) { return inspection(row) }
	i, err := request(ctx, b, read, b.sql.inspect, name)
	if err != nil {
		return unknown, unavailable(err)
	}
	return i, nil
}

// Inspect implements [inspect.Inspector].
func (b *store) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	return b.inspect(ctx, b.name(key))
}

// ForceRelease implements [inspect.Inspector].
func (b *store) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	unknown := inspect.Inspection{State: inspect.Unknown}
	if err := b.enter(); err != nil {
		return unknown, err
	}
	defer b.calls.Done()
	type answer struct {
		inspect.Inspection
		done bool
	}
	read := func(row pgx.Row) (a answer, err error) {
		a.Inspection, err = inspection(row, &a.done)
		return a, err
	}
	a, err := request(ctx, b, read, b.sql.force, b.name(key), owner)
	switch {
	case err != nil:
		return unknown, unavailable(err)
	case !a.done && owner == "" && len(a.Holders) > 1:
		return a.Inspection, fmt.Errorf("%w: %d owners have something of the group, and none is named", locker.ErrInvalid,
			len(a.Holders))
	case !a.done:
		return a.Inspection, locker.ErrNotHeld
	}
	for _, h := range a.Holders { // the first whose owner matches has lost what it had
		if shown := min(len(owner), len(h.Owner)); h.Owner[:shown] == owner[:shown] {
			h.Waiting = a.Waiting
			return h, nil
		}
	}
	return a.Inspection, nil
}
