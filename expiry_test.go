package locker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// The more leases may end at the same time, the earlier they begin to, so that the last one is told in time.
func TestManyLeasesThatEndTogetherEndEarlier(t *testing.T) {
	for n, want := range map[int]time.Duration{
		1: 0, 900: 0, 10_000: 80 * time.Millisecond, 50_000: 200 * time.Millisecond, // a tenth of the TTL at most
	} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				const ttl = 2 * time.Second
				c := locker.NewClient(memory.NewBackend())
				var lease locker.Lease
				for i := range n {
					lease = mustLock(t, c, fmt.Sprint(i), locker.TTL(ttl), locker.NoRenewal())
				}
				until := lease.Until()
				<-lease.Done()
				// One lease ends a hundredth of the TTL and a millisecond before Until; see margin.
				early := time.Until(until) - ttl/100 - time.Millisecond
				if early < want-want/10 || early > want {
					t.Errorf("the lease has ended %v earlier than a single one, want %v", early, want)
				}
				_ = c.Close()
			})
		})
	}
}

// refusing is a store that grants locks and does not extend them. It records when it was asked to.
type refusing struct {
	backend.Backend
	mu    sync.Mutex
	asked []time.Time
}

func (f *refusing) Extend(context.Context, backend.Request) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, time.Now())
	return locker.ErrUnavailable
}

// Renewals that fail are tried again until a lease ends. But if many leases do, the processors have to tell of that,
// and there are no renewals in the last moments.
func TestManyLeasesAreNotRenewedAgainWhenTheyAreAboutToEnd(t *testing.T) {
	for n, want := range map[int]time.Duration{1: 0, 10_000: 80 * time.Millisecond} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				store := &refusing{Backend: memory.NewBackend()}
				c := locker.NewClient(store)
				var lease locker.Lease
				for i := range n {
					lease = mustLock(t, c, fmt.Sprint(i), locker.TTL(2*time.Second))
				}
				<-lease.Done()
				told := time.Now()
				_ = c.Close()
				late, before := 0, 0
				for _, at := range store.asked {
					if at.After(told.Add(-want)) {
						late++
					} else {
						before++
					}
				}
				if late > 0 {
					t.Errorf("%d renewals were sent in the last %v", late, want)
				}
				if before+late < 5*n {
					t.Errorf("%d renewals were sent for %d leases, want at least 5 for each", before+late, n)
				}
			})
		})
	}
}
