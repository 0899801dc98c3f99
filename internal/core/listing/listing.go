// Package listing looks at the locks of a listing, for stores that first learn their keys.
package listing

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker/inspect"
)

// looks is how many locks are looked at together. A server may execute what came together before it answers others.
const looks = 32

// Of lists the locks of some pages of keys that look does not find free.
func Of(
	ctx context.Context, pages iter.Seq2[[]string, error],
	look func(ctx context.Context, key string) (inspect.Inspection, error),
) iter.Seq2[inspect.Listed, error] {
	return func(yield func(inspect.Listed, error) bool) {
		for keys, err := range pages {
			if err != nil {
				yield(inspect.Listed{}, err)
				return
			}
			for some := range slices.Chunk(keys, looks) {
				found, errs := make([]inspect.Listed, len(some)), make([]error, len(some))
				var calls sync.WaitGroup
				for i, key := range some {
					calls.Go(func() {
						found[i] = inspect.Listed{Key: key, At: time.Now()}
						found[i].Inspection, errs[i] = look(ctx, key)
					})
				}
				calls.Wait()
				for i, l := range found {
					switch {
					case errs[i] != nil:
						yield(inspect.Listed{}, errs[i])
						return
					case l.State == inspect.Free, l.State == inspect.Foreign:
					case !yield(l, nil):
						return
					}
				}
			}
		}
	}
}
