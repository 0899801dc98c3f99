package postgreslock_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/semaphore"
)

// A free permit is one statement.
func testFreePermit(t *testing.T, s *pgtest.Server) {
	l, count := counted(t, s.URL("postgres"))
	for range 3 {
		lease, err := semaphore.New(l, 3).Lock(t.Context(), "free permits")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { must(t, "Unlock", lease.Unlock(t.Context())) }()
	}
	if n := count.sent.Load(); n != 3 {
		t.Errorf("got %d statements for 3 permits, want 3", n)
	}
}

// Callers at the same time get different locks, and do not wait for each other: a transaction that is changing the
// first lock has not ended when others are granted the second and the third one. A caller that finds too few waits for
// it.
func testStepsAtTheSameTime(t *testing.T, s *pgtest.Server) {
	keys := []string{"at the same time 0", "at the same time 1", "at the same time 2"}
	b := postgreslock.NewBackend(pool(t, s.URL("postgres")))
	t.Cleanup(func() { must(t, "Close", b.Close()) })
	first := backend.Request{Key: "at the same time first", Token: backend.NewToken(), TTL: time.Minute}
	_, err := b.Acquire(t.Context(), first) // the first grant of a server's life keeps others waiting
	must(t, "Acquire", err)
	must(t, "Release", b.Release(t.Context(), first))
	tx := begin(t, s.URL("postgres"), pgx.ReadCommitted)
	_, err = tx.Exec(t.Context(), "SELECT locker.acquire($1, 'other', '', 60000000, '', '')",
		[]byte(postgreslock.DefaultPrefix+keys[0]))
	must(t, "acquire", err)
	requests := func() (reqs []backend.Request) {
		for _, key := range keys {
			reqs = append(reqs, backend.Request{Key: key, Token: backend.NewToken(), TTL: time.Minute})
		}
		return reqs
	}
	var mu sync.Mutex
	slots := map[int]int{}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			grants, err := b.AcquireMany(t.Context(), requests(), backend.Choice{N: 1, Gates: []string{"gate"}})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for i, g := range grants {
				if g != nil {
					slots[i]++
				}
			}
		})
	}
	all.Wait()
	if slots[1] != 1 || slots[2] != 1 {
		t.Errorf("beside a transaction that changes the first lock: granted %v, want one each of 1 and 2", slots)
	}
	refused := make(chan error)
	go func() {
		_, err := b.AcquireMany(t.Context(), requests(), backend.Choice{N: 1})
		refused <- err
	}()
	select {
	case err := <-refused:
		t.Errorf("before the transaction has ended: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	must(t, "Commit", tx.Commit(t.Context()))
	if err := <-refused; !errors.Is(err, locker.ErrHeld) {
		t.Errorf("after all locks are held: %v", err)
	}
}
