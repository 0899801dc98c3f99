package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
)

// session is a connection that has the lock of req, or tries to get it. Closing the connection undoes everything.
type session struct {
	b    *AdvisoryBackend
	conn *pgxpool.Conn
	req  locker.Request
	name []byte

	ctx    context.Context // of all statements about a lock that is held
	cancel context.CancelFunc
	lost   context.Context // ends when the connection has ended without a release
	lose   context.CancelFunc

	mu      sync.Mutex // held while the connection is used
	fence   uint64
	until   time.Time    // the lock lasts until then, if the session does
	unwatch func() error // returns why the connection has ended, if it has
	over    error        // the answer to all calls when the connection has ended or was given back; else nil

	releasing *releaseAttempt // that is under way or comes next, or nil; guarded by the mu of database
}

// connect takes a connection from the pool.
func (b *AdvisoryBackend) connect(ctx context.Context, req locker.Request) (*session, error) {
	bounded, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	conn, err := b.pool.Acquire(bounded)
	if err != nil {
		if stat := b.pool.Stat(); ctx.Err() == nil && stat.AcquiredConns() >= stat.MaxConns() {
			err = fmt.Errorf("none of the %d connections of the pool was free for %v: each lock that is held or "+
				"waited for takes one: raise pool_max_conns: %w", stat.MaxConns(), b.timeout, err)
		}
		return nil, err
	}
	return &session{b: b, conn: conn, req: req, name: b.name(req.Key)}, nil
}

// advisoryAttempt is the answer to a request for an advisory lock.
type advisoryAttempt struct {
	attempt
	kept bool // no session has the lock: it is kept
}

// acquire asks for the lock. waits says that block will be called if the lock is refused, and has says that block has
// got it. If ctx ends meanwhile, or if acquire fails, the session must be discarded.
func (s *session) acquire(ctx context.Context, waits, has bool) (a advisoryAttempt, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.b.timeout)
	defer cancel()
	var fence, remaining *int64
	var label *string
	conn := s.conn.Conn()
	err = conn.QueryRow(ctx, s.b.sql.advisoryAcquire, s.name, s.req.Token, s.req.Label, milliseconds(s.req.TTL),
		int64(conn.PgConn().PID()), waits, has).Scan(&fence, &remaining, &label, &a.kept)
	a.set(fence, remaining, label)
	return a, err
}

// hold begins to watch a session that was granted the lock by a request that was sent at sent.
func (s *session) hold(fence uint64, sent time.Time) (locker.Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fence, s.until = fence, sent.Add(s.req.TTL)
	s.ctx, s.cancel = context.WithCancel(s.b.ctx)
	s.lost, s.lose = context.WithCancel(context.Background())
	if !s.b.add(s) {
		s.cancel()
		s.discard()
		return locker.Grant{}, locker.ErrClosed
	}
	s.watch()
	return locker.Grant{Fence: fence, Private: s, Sent: sent}, nil
}

// discard ends a connection that nobody else uses: the server then ends what the session has.
func (s *session) discard() {
	s.b.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
		defer cancel()
		_ = s.conn.Conn().Close(ctx)
		s.conn.Release()
	})
}

// watch notices the end of a connection that nobody uses. Call with mu held.
func (s *session) watch() {
	ctx, cancel := context.WithCancel(s.b.open)
	result := make(chan error, 1)
	s.unwatch = func() error {
		cancel()
		return <-result
	}
	s.b.background.Go(func() {
		defer cancel()
		conn := s.conn.Conn()
		var err error
		for err == nil {
			_, err = conn.WaitForNotification(ctx)
		}
		if !conn.IsClosed() { // it was interrupted
			result <- nil
			return
		}
		result <- err
		s.mu.Lock()
		defer s.mu.Unlock()
		s.end(err)
	})
}

// end notes that the connection has ended with err. Call with mu held.
func (s *session) end(err error) {
	if s.over != nil {
		return
	}
	var answer *pgconn.PgError
	if errors.As(err, &answer) { // the server has said so
		s.over = fmt.Errorf("%w: %w", locker.ErrNotHeld, err)
	} else {
		s.over = fmt.Errorf("%w: the connection that had the lock has ended: %w", locker.ErrUnavailable, err)
	}
	s.leave()
	s.lose()
}

// leave gives the connection back to the pool, which closes it if it has ended. Call with mu held.
func (s *session) leave() {
	s.b.remove(s)
	s.cancel()
	s.conn.Release()
}

// use calls f, which uses the connection. If f fails, and the connection has ended, the lock has.
func (s *session) use(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return s.over
	}
	if err := s.unwatch(); err != nil {
		s.end(err)
		return s.over
	}
	err := f()
	if s.over == nil && s.ctx.Err() != nil && s.b.ctx.Err() == nil {
		// The time to release the lock was over before the statement was sent, and pgx leaves the connection open then.
		_ = s.conn.Conn().Close(s.ctx)
	}
	switch {
	case s.over != nil: // f has given the connection back
		return err
	case s.conn.Conn().IsClosed():
		s.end(err)
		return s.over
	default:
		s.watch()
		return unavailable(err)
	}
}

// exec sends a statement and reads one value. A statement that is not answered within limit ends the connection.
func (s *session) exec(limit time.Duration, into any, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	return s.conn.Conn().QueryRow(ctx, sql, args...).Scan(into)
}

// extend lets the lock last for ttl from now, and not shorter than before.
func (s *session) extend(ttl time.Duration) error {
	return s.use(func() error {
		sent := time.Now()
		ttl := max(ttl, s.until.Sub(sent))
		err := s.exec(max(ttl, s.b.timeout), nil, s.b.sql.advisoryExtend, s.name, s.req.Token, milliseconds(ttl))
		if err == nil {
			s.until = sent.Add(ttl)
		}
		return err
	})
}

// verify sends a statement in the session. The server answers only if the session still exists, and so does its lock
// then. Each statement begins the idle time-out anew, which would extend the lock. So verify also reduces the time-out
// to what is left.
func (s *session) verify() error {
	return s.use(func() error {
		left := max(time.Millisecond, time.Until(s.until))
		const limit = "SELECT set_config('idle_session_timeout', $1, false)"
		return s.exec(max(left, s.b.timeout), nil, limit,
			strconv.FormatInt(milliseconds(left), 10))
	})
}

// release releases the lock, and keeps the name taken until keepUntil, if that is to come.
//
// If a statement is not answered, it is interrupted after a while, which ends the session and so the lock: this one, or
// one that was sent before. That is not done before keepUntil while the TTL runs: the lock would be free too early. If
// the server refuses to keep the lock, it is not released.
func (s *session) release(keepUntil time.Time) error {
	defer time.AfterFunc(max(0, time.Until(keepUntil))+s.b.timeout, s.cancel).Stop()
	return s.use(func() error {
		if keep := time.Until(keepUntil); keep > 0 {
			err := s.exec(max(time.Until(s.until), s.b.timeout), nil, s.b.sql.advisoryKeep, s.name, int64(s.fence),
				microseconds(keep))
			if err != nil {
				return err
			}
		}
		var had bool
		err := s.exec(s.b.timeout, &had, s.b.sql.advisoryRelease, s.name, s.req.Token)
		if s.conn.Conn().IsClosed() {
			return err
		}
		s.over = locker.ErrNotHeld
		switch {
		case err == nil && had:
			s.leave()
			return nil
		case err == nil:
			err = locker.ErrNotHeld
		default:
			err = unavailable(err)
		}
		s.b.remove(s)
		s.cancel()
		s.discard() // which releases what it has
		return err
	})
}

// ended reports whether the session has ended, or has been given back.
func (s *session) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over != nil
}

// abandon leaves the lock to its TTL. Nobody may use the session any more.
func (s *session) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil {
		return
	}
	_ = s.unwatch()
	s.over = locker.ErrClosed
	s.cancel()
	wire := s.conn.Hijack().PgConn().Conn()
	time.AfterFunc(time.Until(s.until), func() { _ = wire.Close() })
}

// milliseconds rounds d up.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
