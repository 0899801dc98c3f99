package postgreslock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// request sends one statement and reads its row. It returns when ctx ends, if not before. A request that has been sent
// then goes on in the background, for the timeout at most, and the error is a *left. A connection whose request is
// interrupted is lost, and contexts end often. There are never more such requests than connections. Call it in a call
// of the backend, or in a chore.
func request[T any](
	ctx context.Context, b *store, read func(row pgx.Row) (T, error), sql string, args ...any,
) (T, error) {
	var none, value T
	if b.invalid != nil {
		return none, notSent{b.invalid}
	}
	conn, err := b.connection(ctx, b.timeout)
	if err != nil {
		return none, notSent{err}
	}
	if ctx.Done() == nil {
		return exchange(ctx, b, b.timeout, conn, read, sql, args...)
	}
	var failure error
	answered := make(chan struct{})
	b.tasks.Go(func() {
		defer close(answered)
		value, failure = exchange(ctx, b, b.timeout, conn, read, sql, args...)
	})
	select {
	case <-answered:
		return value, failure
	case <-ctx.Done():
		return none, &left{ctx.Err(), answered, &failure}
	}
}

// exchange sends a statement over conn, which it gives back to the pool, and reads its row. It does not end with ctx.
// If no answer comes within limit, the connection is lost.
func exchange[T any](
	ctx context.Context, b *store, limit time.Duration, conn *pgxpool.Conn, read func(row pgx.Row) (T, error),
	sql string, args ...any,
) (T, error) {
	defer conn.Release()
	sending, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	value, err := read(conn.QueryRow(sending, sql, args...))
	b.leave(err)
	return value, err
}

// connection takes a connection of the pool. If there is none within limit, the error says which it waited for: a
// server, or other users of the pool.
//
// It returns when ctx ends, but its deadline is not for the pool. The pool asks a connection that was idle whether it
// is there, and closes it if no answer comes by the deadline. So each call with a short one would cost a connection of
// a server that is slow, and make it slower.
func (b *store) connection(ctx context.Context, limit time.Duration) (*pgxpool.Conn, error) {
	taking, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	defer context.AfterFunc(b.ctx, cancel)()
	conn, err := b.pool.Acquire(taking)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, b.crowded(ctx.Err())
	case err != nil && taking.Err() != nil:
		return nil, b.crowded(err)
	}
	return conn, err
}

// crowded adds to err, of a request that has waited for a connection, that all of the pool were in use, if they were.
func (b *store) crowded(err error) error {
	if all := b.pool.Stat(); b.ctx.Err() == nil && all.AcquiredConns() >= all.MaxConns() {
		return fmt.Errorf("all %d connections of the pool were in use: if the server answers, give locks a pool of their "+
			"own, or raise pool_max_conns: %w", all.MaxConns(), err)
	}
	return err
}

// resetInterval is how long leave spares the pool, at least, after it has closed its connections: the new ones may lead
// to another server.
const resetInterval = time.Second

// leave closes all connections of the pool if err says that the server takes no writes. The server was made a standby,
// or the name or the address leads to another one now, and connections that exist would stay for up to an hour.
// Connections that are in use are closed when they are released.
func (b *store) leave(err error) {
	if !standby[code(err)] {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); now.Sub(b.reset) >= resetInterval {
		b.reset = now
		b.pool.Reset()
	}
}

// left is the error of a request whose caller has left before the answer came.
type left struct {
	error
	answered <-chan struct{}
	failure  *error // of the request; valid when answered is closed
}

func (l *left) Unwrap() error { return l.error }

// answerGrace is how long an attempt that is to be undone still waits for the answer to its request when Close has
// begun. Close waits for a second, and the rest of it is for the undoing over another connection.
const answerGrace = 300 * time.Millisecond

// outcome returns how a request that returned err has ended. It waits for the answer, for the timeout at most. If no
// answer comes within answerGrace after Close has begun, outcome returns err.
func (b *store) outcome(err error) error {
	var l *left
	if !errors.As(err, &l) {
		return err
	}
	select {
	case <-l.answered:
		return *l.failure
	case <-b.open.Done():
	}
	select {
	case <-l.answered:
		return *l.failure
	case <-time.After(answerGrace):
		return err
	}
}

// text reads a row of one text.
func text(row pgx.Row) (s string, err error) {
	err = row.Scan(&s)
	return s, err
}

// placeRetries is how long undo tries, at least, to give up the place of a waiter in the queue. A place that stays in
// the table keeps nobody waiting for longer than three seconds, and later waiters remove it.
const placeRetries = time.Minute

// undo ends an attempt in the background: the lock that it was granted, and its place in the queue if ticket is not
// empty. err is what the last request of the attempt has returned. Most requests whose callers leave are answered soon
// after that. Then no request of the attempt can arrive any more, and undo leaves no note of it in the store. A lock
// ends with its TTL, and a place does not. Errors that the server answers end with time, too: a request that had to
// wait for another one for too long, or a disk that is full.
func (b *store) undo(name []byte, token, ticket string, ttl time.Duration, err error) {
	limit := ttl
	if ticket != "" {
		limit = max(ttl, placeRetries)
	}
	b.calls.Go(func() {
		end, tombstone := b.outcome(err), int64(0)
		switch {
		case unknown(end):
			tombstone = microseconds(ttl)
		case end != nil && ticket == "":
			return // the server has refused it
		}
		b.chores.Repeat(time.Now().Add(limit), func(ctx context.Context) error {
			_, err := request(ctx, b, func(row pgx.Row) (any, error) { return nil, row.Scan(nil) }, b.sql.undo,
				name, token, ticket, tombstone)
			return err
		})
	})
}
