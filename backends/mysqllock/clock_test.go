package mysqllock_test

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/mysqllock"
	"github.com/golocker/locker/internal/testing/mariadbtest"
	"github.com/golocker/locker/internal/testing/testserver"
	"github.com/golocker/locker/record"
)

// stepped is a server whose clock is set, and processes that look once.
type stepped struct {
	t     *testing.T
	db    *sql.DB
	clock *testserver.Clock
	skew  time.Duration
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func startStepped(t *testing.T, skew time.Duration) stepped {
	s, clock := mariadbtest.StartWithClock(t)
	migrate(t, s)
	return stepped{t, pool(t, s.URL(mariadbtest.Database)), clock, skew}
}

// set sets the clock, and returns when the server shows that. A session has the time at which its statement began.
func (s stepped) set(ahead time.Duration) {
	s.t.Helper()
	must(s.t, s.clock.Set(ahead, 0))
	eventually(s.t, "the clock has moved", func() error {
		var micros int64
		err := s.db.QueryRow("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))").Scan(&micros)
		if off := time.Until(time.UnixMicro(micros)) - ahead; err == nil && off.Abs() > time.Second/2 {
			err = fmt.Errorf("it is wrong by %v", off)
		}
		return err
	})
}

// try makes an attempt as a process that has not looked before. A process that has crashed does not close its Client.
func (s stepped) try(opts ...locker.Option) (locker.Lease, error) {
	l := record.New(mysqllock.NewStore(s.db), record.ClockSkew(s.skew))
	s.t.Cleanup(func() { _ = l.Close() })
	return l.TryLock(s.t.Context(), "k", append([]locker.Option{locker.NoRenewal()}, opts...)...)
}

// The clock of the server is set forth and back, again and again, within the skew. Processes that look once take the
// locks of those that have crashed, and none on which its holder relies.
func TestServerClockIsSteppedWithinTheSkew(t *testing.T) {
	t.Parallel()
	const skew, ttl, grants = 600 * time.Millisecond, 500 * time.Millisecond, 20
	s := startStepped(t, skew)
	var mu sync.Mutex
	var holder locker.Lease
	n := 0
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { // any two times are apart by the skew at most
		for {
			for _, ahead := range []time.Duration{skew, 0, rand.N(skew)} {
				if err := s.clock.Set(ahead, 0); err != nil {
					t.Error(err)
				}
				select {
				case <-done:
					return
				case <-time.After(20*time.Millisecond + rand.N(200*time.Millisecond)):
				}
			}
		}
	})
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(rand.N(60 * time.Millisecond)):
				}
				lease, err := s.try(locker.TTL(ttl))
				if err != nil {
					continue
				}
				mu.Lock()
				if holder != nil && holder.Err() == nil && lease.Err() == nil {
					t.Errorf("two holders: one with token %d until %v, and one with token %d", holder.Fence(),
						time.Until(holder.Until()), lease.Fence())
				}
				holder = lease
				if n++; n == grants {
					close(done)
				}
				mu.Unlock()
				if rand.IntN(2) == 0 {
					_ = lease.Extend(t.Context(), locker.TTL(ttl/2+rand.N(2*ttl)))
				}
				if rand.IntN(4) == 0 {
					_ = lease.Unlock(t.Context())
				}
			}
		})
	}
	all.Wait()
}

// If the clock is set forth by more than the skew and the TTL, a lock has two holders. If it is set back by more, a
// process that looks once finds the lock of a holder that has crashed held for longer, and one that watches does not.
func TestServerClockIsSteppedBeyondTheSkew(t *testing.T) {
	t.Parallel()
	const skew = 2 * time.Second
	s := startStepped(t, skew)
	first, err := s.try(locker.TTL(time.Minute))
	must(t, err)
	s.set(time.Minute / 2)
	if second, err := s.try(); err == nil {
		t.Errorf("within the TTL: tokens %d and %d", first.Fence(), second.Fence())
	}
	s.set(10 * time.Minute)
	second, err := s.try(locker.TTL(time.Second))
	must(t, err)
	if err := first.Err(); err != nil {
		t.Errorf("the first holder has learned it, and this shows nothing: %v", err)
	}
	if second.Fence() <= first.Fence() {
		t.Errorf("token %d after %d", second.Fence(), first.Fence())
	}
	must(t, second.Extend(t.Context(), locker.TTL(time.Second)))
	<-second.Done() // it has crashed
	s.set(0)
	l := record.New(mysqllock.NewStore(s.db), record.ClockSkew(skew))
	defer func() { _ = l.Close() }()
	if _, err := s.try(); err == nil {
		t.Error("a process that looks once does not see that the clock was set back")
	}
	third, err := l.Lock(t.Context(), "k", locker.TTL(time.Minute))
	must(t, err)
	if third.Fence() <= second.Fence() {
		t.Errorf("token %d after %d", third.Fence(), second.Fence())
	}
}
