package locker_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// servers is a store of two servers. One of them has the keys that begin with "hung", and may hang.
type servers struct {
	*memory.Backend
	hung    atomic.Bool
	latency time.Duration

	inFlight, peak atomic.Int64
}

func (s *servers) Extend(ctx context.Context, req backend.Request) error {
	defer s.inFlight.Add(-1)
	if n := s.inFlight.Add(1); n > s.peak.Load() {
		s.peak.Store(n)
	}
	if s.hung.Load() && strings.HasPrefix(req.Key, "hung") {
		<-ctx.Done()
		return locker.ErrUnavailable
	}
	if s.latency > 0 {
		select {
		case <-time.After(s.latency):
		case <-ctx.Done():
			return locker.ErrUnavailable
		}
	}
	return s.Backend.Extend(ctx, req)
}

// beside runs f in virtual time with a Client that has n leases, a third of them on the server that may hang. It
// returns how many have ended in the end on the other server, and on this one.
func beside(t *testing.T, s *servers, n int, ttl time.Duration, f func()) (healthy, hung int) {
	virtual.Test(t, func(t *testing.T) {
		s.Backend = memory.NewBackend()
		c := locker.NewClient(s)
		var leases []locker.Lease
		for i := range n {
			server := "healthy"
			if i%3 == 0 {
				server = "hung"
			}
			leases = append(leases, mustLock(t, c, fmt.Sprint(server, i), locker.TTL(ttl)))
		}
		time.Sleep(ttl / 10)
		f()
		for _, l := range leases {
			switch {
			case l.Err() == nil:
			case strings.HasPrefix(l.Key(), "hung"):
				hung++
			default:
				healthy++
			}
		}
		if peak := s.peak.Load(); peak > 1024 {
			t.Errorf("%d renewals in flight", peak)
		}
		s.hung.Store(false)
		_ = c.Close()
	})
	return healthy, hung
}

// Renewals that hang must not take the places of those that a healthy server would answer, however many they are.
func TestLeasesBesideAServerThatHangs(t *testing.T) {
	for _, tt := range []struct {
		n            int
		ttl, latency time.Duration
	}{
		{15_000, 10 * time.Second, 0},
		{15_000, 2 * time.Second, 0},
		{15_000, 30 * time.Second, 50 * time.Millisecond},
		{60_000, 10 * time.Second, 0},
		{60_000, 30 * time.Second, 20 * time.Millisecond},
	} {
		if testing.Short() && tt.n > 15_000 {
			continue
		}
		t.Run(fmt.Sprint(tt.n, " leases of ", tt.ttl, ", ", tt.latency), func(t *testing.T) {
			s := &servers{latency: tt.latency}
			healthy, hung := beside(t, s, tt.n, tt.ttl, func() {
				s.hung.Store(true)
				time.Sleep(2 * tt.ttl)
			})
			if healthy > 0 {
				t.Errorf("%d leases on the healthy server are lost", healthy)
			}
			if hung < tt.n/3 {
				t.Errorf("only %d leases on the other one are lost: the test shows nothing", hung)
			}
		})
	}
}

// A store that takes long for every answer is no store that hangs: renewals that are given up would all be in vain.
func TestStoreThatIsSlowIsAwaited(t *testing.T) {
	const ttl = 10 * time.Second
	s := &servers{latency: 600 * time.Millisecond} // 1,024 at a time take 4.1 s for all of them
	healthy, hung := beside(t, s, 7000, ttl, func() { time.Sleep(3 * ttl) })
	if n := healthy + hung; n > 0 {
		t.Errorf("%d leases are lost", n)
	}
}

// Leases whose renewals were given up are renewed when the server is back.
func TestLeasesOfAServerThatHangsForAMoment(t *testing.T) {
	const ttl = 10 * time.Second
	s := &servers{latency: time.Millisecond}
	healthy, hung := beside(t, s, 15_000, ttl, func() {
		s.hung.Store(true)
		time.Sleep(ttl / 2)
		s.hung.Store(false)
		time.Sleep(2 * ttl)
	})
	if n := healthy + hung; n > 0 {
		t.Errorf("%d leases are lost", n)
	}
}

// Renewals of leases with a long TTL take as long as ten seconds if they hang. A lease with a short one has its turn.
func TestShortLeaseBesideLongOnesThatHang(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := &servers{Backend: memory.NewBackend()}
		c := locker.NewClient(s)
		for i := range 5000 {
			mustLock(t, c, fmt.Sprint("hung", i), locker.TTL(time.Minute))
		}
		short := mustLock(t, c, "healthy", locker.TTL(2*time.Second))
		s.hung.Store(true)
		time.Sleep(time.Minute)
		if err := short.Err(); err != nil {
			t.Error(err)
		}
		s.hung.Store(false)
		_ = c.Close()
	})
}
