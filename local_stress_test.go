package locker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

func TestLocalHandoverUnderStress(t *testing.T) {
	for seed := range uint64(60) {
		virtual.Test(t, func(t *testing.T) {
			b := memory.NewBackend()
			var mu sync.Mutex
			var last uint64
			var holder locker.Lease
			var wg sync.WaitGroup
			local, total := 0, 0
			tokens := map[string]int{}
			var clients []*locker.Client
			for k := range 3 {
				var be backend.Backend = b
				if k == 2 {
					be = struct{ backend.Backend }{b}
				}
				c := locker.NewClient(be)
				clients = append(clients, c)
				for g := range 6 {
					wg.Go(func() {
						r := rand.New(rand.NewPCG(seed, uint64(k*10+g)))
						for range 40 {
							ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(200)+1)*time.Millisecond)
							opts := []locker.Option{locker.TTL(time.Second)}
							switch r.IntN(12) {
							case 0:
								opts = append(opts, locker.NoRenewal())
							case 1:
								opts = append(opts, locker.NoLocalHandover())
							case 2:
								opts = append(opts, locker.MaxHold(time.Second))
							}
							var l locker.Lease
							var err error
							if r.IntN(10) == 0 {
								var all *locker.AllLease
								if all, err = locker.LockAll(ctx, c, []string{"k", "z"}, opts...); err == nil {
									_ = all.Unlock(ctx)
								}
								cancel()
								continue
							}
							start := time.Now()
							l, err = c.Lock(ctx, "k", opts...)
							if err != nil {
								cancel()
								continue
							}
							_ = start
							mu.Lock()
							if holder != nil && holder.Err() == nil {
								t.Errorf("two: %d %d", holder.Fence(), l.Fence())
							}
							if l.Fence() <= last {
								t.Errorf("token %d after %d", l.Fence(), last)
							}
							last, holder = l.Fence(), l
							total++
							if tokens[l.Token()]++; tokens[l.Token()] > 1 {
								local++
							}
							mu.Unlock()
							switch r.IntN(8) {
							case 0:
								_ = l.Extend(ctx, locker.TTL(time.Second))
							case 1:
								_ = l.Extend(ctx)
							case 2:
								go func() { _ = l.Extend(ctx); _ = l.Unlock(ctx) }()
							}
							time.Sleep(time.Duration(r.IntN(4)) * time.Millisecond)
							if err := l.Err(); err != nil && !isUnlocked(err) {
								t.Error(err)
							}
							var un sync.WaitGroup
							n := 1 + r.IntN(2)
							for range n {
								un.Go(func() {
									if err := l.Unlock(ctx); err != nil && !isUnlocked(err) {
										t.Error(err)
									}
								})
							}
							un.Wait()
							cancel()
						}
					})
				}
			}
			wg.Wait()
			time.Sleep(time.Second)
			for _, c := range clients {
				if n := locker.Held(c); n != 0 {
					t.Errorf("%d grants", n)
				}
				if n := locker.Queues(c); n != 0 {
					t.Errorf("%d queues", n)
				}
				_ = c.Close()
			}
			if seed == 0 {
				t.Log(local, total)
			}
		})
	}
}

func isUnlocked(err error) bool { return errors.Is(err, locker.ErrUnlocked) }
