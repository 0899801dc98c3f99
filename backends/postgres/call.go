package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// request sends one statement and reads its row. It returns when ctx ends, if not before. A request that has been sent
// then goes on in the background, for the timeout at most: a connection whose request is interrupted is lost, and
// contexts end often. There are never more such requests than connections. Call it between enter and background.Done.
func request[T any](
	ctx context.Context, b *database, read func(row pgx.Row) (T, error), sql string, args ...any,
) (T, error) {
	var none T
	connecting, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	conn, err := b.pool.Acquire(connecting)
	if err != nil {
		return none, notSent{err}
	}
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	exchange := func() {
		defer conn.Release()
		sending, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.timeout)
		defer cancel()
		defer context.AfterFunc(b.ctx, cancel)()
		value, err := read(conn.QueryRow(sending, sql, args...))
		answers <- answer{value, err}
	}
	if ctx.Done() == nil {
		exchange()
	} else {
		b.background.Go(exchange)
	}
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// text reads a row of one text.
func text(row pgx.Row) (s string, err error) {
	err = row.Scan(&s)
	return s, err
}

const (
	minRetry = 50 * time.Millisecond
	maxRetry = time.Second
)

// later is repeat in the background. Call it between enter and background.Done.
func (b *database) later(limit time.Duration, f func(ctx context.Context) error) {
	b.background.Go(func() { _ = b.repeat(limit, f) })
}

// repeat calls f until it succeeds, until limit has passed, or until Close. It returns the last error. Errors that the
// server answers end with time, too: a request that had to wait for another one for too long, or a disk that is full.
func (b *database) repeat(limit time.Duration, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	for pause := minRetry; ; pause = min(2*pause, maxRetry) {
		err := f(ctx)
		if err == nil {
			return nil
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-b.open.Done():
		}
		t.Stop()
		if ctx.Err() != nil || b.open.Err() != nil {
			return err
		}
	}
}

// placeRetries is how long undo tries, at least, to give up the place of a waiter in the queue. A place that stays in
// the table keeps nobody waiting for longer than three seconds, and later waiters remove it.
const placeRetries = time.Minute

// undo ends an attempt in the background: the lock that it was granted, and its place in the queue if ticket is not
// empty. late says that a request of the attempt may still arrive. A lock ends with its TTL, and a place does not.
func (b *Backend) undo(name []byte, token, ticket string, ttl time.Duration, late bool) {
	tombstone := int64(0)
	if late {
		tombstone = microseconds(ttl)
	}
	limit := ttl
	if ticket != "" {
		limit = max(ttl, placeRetries)
	}
	b.later(limit, func(ctx context.Context) error {
		_, err := request(ctx, b.database, func(row pgx.Row) (any, error) { return nil, row.Scan(nil) }, b.sql.undo,
			name, token, ticket, tombstone)
		return err
	})
}
