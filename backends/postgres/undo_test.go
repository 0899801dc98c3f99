package postgres_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// muted is a connection whose answers get lost once it is silent, as behind a router that has forgotten it.
type muted struct {
	net.Conn
	silent atomic.Bool
}

func (m *muted) Read(b []byte) (int, error) {
	for {
		n, err := m.Conn.Read(b)
		if err != nil || !m.silent.Load() {
			return n, err
		}
	}
}

// An attempt whose connection is silent is undone by another connection, also if the Client is closed at once.
func testUndoneBeforeClose(t *testing.T, s *pgtest.Server) {
	settings, err := pgxpool.ParseConfig(s.URL("postgres"))
	must(t, "ParseConfig", err)
	var mu sync.Mutex
	var conns []*muted
	dial := settings.ConnConfig.DialFunc
	settings.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		m := &muted{Conn: conn}
		conns = append(conns, m)
		return m, nil
	}
	p, err := pgxpool.NewWithConfig(t.Context(), settings)
	must(t, "NewWithConfig", err)
	t.Cleanup(p.Close)
	prefix := newPrefix()
	l := postgres.New(p, postgres.Prefix(prefix))
	must(t, "Unlock", lock(t, l, "k").Unlock(t.Context()))
	mu.Lock()
	for _, c := range conns {
		c.silent.Store(true)
	}
	mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := l.TryLock(ctx, "k", locker.TTL(time.Hour)); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("TryLock: got %v, want ErrUnavailable", err)
	}
	must(t, "Close", l.Close())
	if left := texts(t, pool(t, s.URL("postgres")), leftSQL, prefix); len(left) > 0 {
		t.Errorf("Close has left %q", left)
	}
}
