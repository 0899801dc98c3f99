package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
)

// NewAdvisory returns a Client whose locks are PostgreSQL's advisory locks of a session. A lock ends with the
// connection that has it: at once when the process dies, and after the TTL when the network or the process stands
// still. An acquisition does not wait for the disk. The page docs/backends/postgres.md says what these locks do not
// promise: among other things, they do not survive the connection.
//
// Each lock that is held, and each that is waited for, takes a connection of pool for that time. So the pool should
// have as many connections as that, and should be for locks only. There must be no proxy such as PgBouncer between pool
// and the server, which must be PostgreSQL 14 or newer; acquisitions fail otherwise. The tables are those of [Migrate].
//
// Locks of NewAdvisory and of [New] do not exclude each other. Close the Client before pool.
func NewAdvisory(pool *pgxpool.Pool, opts ...Option) *locker.Client {
	return locker.NewClient(NewAdvisoryBackend(pool, opts...))
}

// AdvisoryBackend is the store of locks behind a Client of [NewAdvisory]. It implements locker.Backend, locker.Queuer,
// locker.Verifier, locker.LossNotifier and inspect.Inspector.
type AdvisoryBackend struct {
	*database
	sessions map[string]*session // that have a lock, by token; guarded by the mu of database
}

// NewAdvisoryBackend returns what [NewAdvisory] makes a Client of.
func NewAdvisoryBackend(pool *pgxpool.Pool, opts ...Option) *AdvisoryBackend {
	b := &AdvisoryBackend{database: newDatabase(pool, opts), sessions: make(map[string]*session)}
	b.sql.inspect, b.sql.forceRelease = b.sql.advisoryInspect, b.sql.advisoryForce
	return b
}

// Close ends the waiting calls and the background work. Locks that are held end with their TTL, or with the process.
func (b *AdvisoryBackend) Close() error {
	b.finish()
	b.mu.Lock()
	held := slices.Collect(maps.Values(b.sessions))
	clear(b.sessions)
	b.mu.Unlock()
	for _, s := range held {
		s.abandon()
	}
	b.closePool()
	return nil
}

// add notes a session that has a lock. It returns false if the Backend is closed.
func (b *AdvisoryBackend) add(s *session) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.sessions[s.req.Token] = s
	}
	return !b.closed
}

func (b *AdvisoryBackend) remove(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sessions, s.req.Token)
}

// Acquire implements [locker.Backend].
func (b *AdvisoryBackend) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if err := b.enter(); err != nil {
		return locker.Grant{}, err
	}
	defer b.background.Done()
	b.mu.Lock()
	s := b.sessions[req.Token]
	b.mu.Unlock()
	if s != nil { // the same request once more
		if err := b.detached(ctx, func() error { return s.extend(req.TTL) }); err != nil {
			return locker.Grant{}, regrantFailed(err)
		}
		return locker.Grant{Fence: s.fence, Private: s}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	s, err := b.connect(ctx, req)
	if err != nil {
		return locker.Grant{}, unavailable(err)
	}
	sent := time.Now()
	a, err := s.acquire(ctx, false, false)
	switch {
	case err != nil:
		s.discard()
		return locker.Grant{}, unavailable(err)
	case a.fence == 0:
		s.conn.Release()
		return locker.Grant{}, &a.held
	}
	return s.hold(a.fence, sent)
}

// regrantFailed returns the error of an Acquire whose session had the lock already, but did not answer. ErrNotHeld is
// not an answer to Acquire, so the text of err is all that is left of it.
func regrantFailed(err error) error {
	if errors.Is(err, locker.ErrNotHeld) {
		return fmt.Errorf("%w: the session that had the lock has ended: %s", locker.ErrUnavailable, err.Error())
	}
	return err
}

// Extend implements [locker.Backend].
func (b *AdvisoryBackend) Extend(ctx context.Context, req locker.Request) error {
	return b.call(ctx, req, func(s *session) error { return s.extend(req.TTL) })
}

var errNoTx = fmt.Errorf("an advisory lock cannot protect a transaction: use locks in rows, as those of "+
	"postgres.New: %w", errors.ErrUnsupported)

// Verify implements [locker.Verifier]. In a call of [InTx] it fails.
func (b *AdvisoryBackend) Verify(ctx context.Context, req locker.Request) error {
	if _, ok := ctx.Value(txKey{}).(*transaction); ok {
		return errNoTx
	}
	return b.call(ctx, req, (*session).verify)
}

// call calls f with the session that has the lock.
func (b *AdvisoryBackend) call(ctx context.Context, req locker.Request, f func(s *session) error) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.background.Done()
	s, ok := req.Private.(*session)
	if !ok {
		return locker.ErrNotHeld
	}
	return b.detached(ctx, func() error { return f(s) })
}

// detached calls f, and returns when ctx ends, if not before. f then goes on in the background: interrupting its
// statement would end the connection, and the lock. Call it between enter and background.Done.
func (b *AdvisoryBackend) detached(ctx context.Context, f func() error) error {
	result := make(chan error, 1)
	b.background.Go(func() { result <- f() })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return unavailable(ctx.Err())
	}
}

// NotifyLoss implements [locker.LossNotifier]. A connection that has ended is a loss, whatever the server knows of it:
// nobody extends the lock any more.
func (b *AdvisoryBackend) NotifyLoss(req locker.Request, lost func(err error)) (stop func()) {
	s, ok := req.Private.(*session)
	if !ok {
		return func() {}
	}
	cancel := context.AfterFunc(s.lost, func() { lost(locker.ErrNotHeld) })
	return func() { cancel() }
}
