package cli

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// likelyPermits is how many permits of a key are looked at if nobody says how many it has. Permits with small numbers
// are taken first in most stores.
const likelyPermits = 64

// kind is what a key may be, beside a plain lock.
type kind struct {
	name  string
	flags string   // with which the locks are shown
	locks []string // that are not free
}

// kindsOf returns the kinds of which key has locks that are not free. A plain lock of that name has nothing to do with
// them.
func kindsOf(ctx context.Context, l locker.Locker, i inspect.Inspector, key string) ([]kind, error) {
	permits, both := semaphore.New(l, likelyPermits).Locks(key), rwlock.New(l).Locks(key)
	all := slices.Concat(permits, both)
	taken, errs := make([]bool, len(all)), make([]error, len(all))
	next := make(chan int)
	var looks sync.WaitGroup
	for range 16 {
		looks.Go(func() {
			for n := range next {
				seen, err := i.Inspect(ctx, all[n])
				taken[n], errs[n] = err == nil && seen.State != inspect.Free, err
			}
		})
	}
	for n := range all {
		next <- n
	}
	close(next)
	looks.Wait()
	var kinds []kind
	add := func(k kind, from int, locks []string) {
		for n, lock := range locks {
			if taken[from+n] {
				k.locks = append(k.locks, lock)
			}
		}
		if len(k.locks) > 0 {
			kinds = append(kinds, k)
		}
	}
	add(kind{name: "permits", flags: "--permits with their number"}, 0, permits)
	add(kind{name: "readers or writers", flags: "--shared"}, len(permits), both)
	return kinds, errors.Join(errs...)
}
