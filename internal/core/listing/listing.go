// Package listing looks at the locks of a listing, for stores that first learn their names.
package listing

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker/inspect"
)

// looks is how many names are looked at together. A server may execute what came together before it answers others.
const looks = 32

// Of lists the locks of some pages of names that are not free. look returns those of a name.
func Of[N any](
	ctx context.Context, pages iter.Seq2[[]N, error], look func(ctx context.Context, name N) ([]inspect.Listed, error),
) iter.Seq2[inspect.Listed, error] {
	return func(yield func(inspect.Listed, error) bool) {
		for names, err := range pages {
			if err != nil {
				yield(inspect.Listed{}, err)
				return
			}
			for some := range slices.Chunk(names, looks) {
				found, errs := make([][]inspect.Listed, len(some)), make([]error, len(some))
				var calls sync.WaitGroup
				for i, name := range some {
					calls.Go(func() { found[i], errs[i] = look(ctx, name) })
				}
				calls.Wait()
				for i, locks := range found {
					if errs[i] != nil {
						yield(inspect.Listed{}, errs[i])
						return
					}
					for _, l := range locks {
						if l.State != inspect.Free && l.State != inspect.Foreign && !yield(l, nil) {
							return
						}
					}
				}
			}
		}
	}
}

// By returns a look at the lock of a key.
func By(
	inspects func(ctx context.Context, key string) (inspect.Inspection, error),
) func(ctx context.Context, key string) ([]inspect.Listed, error) {
	return func(ctx context.Context, key string) ([]inspect.Listed, error) {
		l := inspect.Listed{Key: key, At: time.Now()}
		var err error
		l.Inspection, err = inspects(ctx, key)
		return []inspect.Listed{l}, err
	}
}
