package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
)

// attempt is the answer to a request for a lock.
type attempt struct {
	fence uint64 // 0: refused
	held  locker.HeldError
}

func readAttempt(row pgx.Row) (a attempt, err error) {
	var fence, remaining *int64
	var label *string
	err = row.Scan(&fence, &remaining, &label)
	a.set(fence, remaining, label)
	return a, err
}

func (a *attempt) set(fence, remaining *int64, label *string) {
	if fence != nil {
		a.fence = uint64(*fence)
	}
	if remaining != nil {
		a.held.Remaining = time.Duration(*remaining) * time.Microsecond
	}
	if label != nil {
		a.held.Label = *label
	}
}

// Acquire implements [locker.Backend].
func (b *Backend) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if err := b.enter(); err != nil {
		return locker.Grant{}, err
	}
	defer b.background.Done()
	name := b.name(req.Key)
	a, err := request(ctx, b.database, readAttempt, b.sql.acquire,
		name, req.Token, req.Label, microseconds(req.TTL), "", "")
	switch {
	case err != nil:
		b.undo(name, req.Token, "", req.TTL, err)
		return locker.Grant{}, unavailable(err)
	case a.fence == 0:
		return locker.Grant{}, &a.held
	}
	return locker.Grant{Fence: a.fence}, nil
}

// Extend implements [locker.Backend].
func (b *Backend) Extend(ctx context.Context, req locker.Request) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.background.Done()
	was, err := request(ctx, b.database, text, b.sql.extend, b.name(req.Key), req.Token, microseconds(req.TTL))
	if err != nil {
		return unavailable(err)
	}
	return notHeld(was)
}

// Release implements [locker.Backend].
func (b *Backend) Release(ctx context.Context, req locker.Request) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.background.Done()
	name, until := b.name(req.Key), time.Now().Add(req.Keep)
	release := func(ctx context.Context) (string, error) {
		keep := microseconds(max(0, time.Until(until)))
		return request(ctx, b.database, text, b.sql.release, name, req.Token, keep)
	}
	was, err := release(ctx)
	if err != nil {
		b.later(req.TTL, func(ctx context.Context) error {
			_, err := release(ctx)
			return err
		})
		return unavailable(err)
	}
	return notHeld(was)
}

// Verify implements [locker.Verifier]. In a call of [InTx] it sends its request in the transaction.
func (b *Backend) Verify(ctx context.Context, req locker.Request) error {
	if tx, ok := ctx.Value(txKey{}).(*transaction); ok {
		return tx.verify(ctx, b, req)
	}
	if err := b.enter(); err != nil {
		return err
	}
	defer b.background.Done()
	was, err := request(ctx, b.database, text, b.sql.verify, b.name(req.Key), req.Token, int64(req.Fence))
	if err != nil {
		return unavailable(err)
	}
	return notHeld(was)
}
