package contention

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/semaphore"
)

// Permits has several callers of each client contend for n permits, and judges from outside: no permit has two holders,
// the tokens of each grow, and everything is given back.
func Permits(t *testing.T, clients []locker.Locker, n int) {
	t.Helper()
	const callers, rounds = 3, 15
	key, ttl := "permits", locker.TTL(30*time.Second)
	var mu sync.Mutex
	held, last := map[int]bool{}, map[int]uint64{}
	begin := func(p *semaphore.Permit) {
		mu.Lock()
		defer mu.Unlock()
		for _, slot := range p.Slots() {
			if held[slot] || slot >= n {
				t.Errorf("permit %d is granted, and held is %v", slot, held)
			}
			if len(p.Slots()) == 1 && p.Fence() <= last[slot] {
				t.Errorf("permit %d has the token %d after %d", slot, p.Fence(), last[slot])
			}
			held[slot], last[slot] = true, max(last[slot], p.Fence())
		}
	}
	end := func(lease locker.Lease) {
		p, _ := semaphore.PermitOf(lease)
		mu.Lock()
		for _, slot := range p.Slots() {
			delete(held, slot)
		}
		mu.Unlock()
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	var full []locker.Lease // all permits at the same time
	for i := range n {
		lease, err := semaphore.New(clients[i%len(clients)], n).Lock(t.Context(), key, ttl)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := semaphore.PermitOf(lease)
		begin(p)
		full = append(full, lease)
	}
	if _, err := semaphore.New(clients[0], n).TryLock(t.Context(), key, ttl); !errors.Is(err, locker.ErrHeld) {
		t.Errorf("TryLock while all %d permits are held: %v", n, err)
	}
	for _, lease := range full {
		end(lease)
	}
	var all sync.WaitGroup
	for _, c := range clients {
		for i := range callers {
			s := semaphore.New(c, n)
			if i == 0 {
				s = s.Weight(2)
			}
			all.Go(func() {
				for range rounds {
					lease, err := s.Lock(t.Context(), key, ttl)
					if err != nil {
						t.Error(err)
						return
					}
					p, _ := semaphore.PermitOf(lease)
					begin(p)
					if err := lease.Extend(t.Context()); err != nil { // takes as long as work does, and shows that it is held
						t.Error(err)
					}
					end(lease)
				}
			})
		}
	}
	all.Wait()
	if err := NothingLeft(t.Context(), clients[0], semaphore.New(nil, n).Locks(key)); err != nil {
		t.Error(err)
	}
}

// patience is how long locks of callers that have died may stay held.
const patience = 20 * time.Second

// NothingLeft waits until none of the locks is held or waited for, and returns an error if that takes too long.
func NothingLeft(ctx context.Context, l locker.Locker, locks []string) error {
	i, ok := locker.As[inspect.Inspector](l)
	if !ok {
		return errors.New("the Locker shows nothing")
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); len(locks) > 0; {
		seen, err := i.Inspect(ctx, locks[0])
		switch {
		case err == nil && seen.State == inspect.Free && seen.Waiting == 0:
			locks = locks[1:]
		case time.Now().After(end):
			return errors.Join(fmt.Errorf("%s is left behind: %+v", locks[0], seen), err)
		default:
			<-tick.C
		}
	}
	return nil
}
