package postgreslock_test

import (
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// Callers of a Client that hand the lock over to each other ask the server for less than a tenth of what they would ask
// it for without that.
func testHandOversSpareStatements(t *testing.T, s *pgtest.Server) {
	const clients, callers = 4, 4
	cost := func(key string, times int, opts ...locker.Option) float64 {
		var counts []*statements
		var all sync.WaitGroup
		for range clients {
			l, count := counted(t, s.URL("postgres"))
			counts = append(counts, count)
			for range callers {
				all.Go(func() {
					for range times {
						lease, err := l.Lock(t.Context(), key, append(opts, locker.TTL(time.Minute))...)
						if err == nil {
							err = lease.Unlock(t.Context())
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
		}
		all.Wait()
		sum := int64(0)
		for _, count := range counts {
			sum += count.sent.Load()
		}
		return float64(sum) / float64(clients*callers*times)
	}
	with, without := cost("handed over", 200), cost("not handed over", 5, locker.NoLocalHandover())
	t.Logf("statements for an acquisition and its release: %.3f, and %.2f without hand-overs", with, without)
	if with > without/10 {
		t.Errorf("got %.3f statements for an acquisition and its release, and %.2f without hand-overs: want a tenth at most",
			with, without)
	}
}
