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
const looks = 16

// Of lists the locks of some pages of names that are not free, at a [Pace]. look returns those of a name.
func Of[N any](
	ctx context.Context, pages iter.Seq2[[]N, error], look func(ctx context.Context, name N) ([]inspect.Listed, error),
) iter.Seq2[inspect.Listed, error] {
	return func(yield func(inspect.Listed, error) bool) {
		var p Pace
		p.Asks(ctx)
		for names, err := range pages {
			p.Answered()
			if err != nil {
				yield(inspect.Listed{}, err)
				return
			}
			for some := range slices.Chunk(names, looks) {
				found, errs := make([][]inspect.Listed, len(some)), make([]error, len(some))
				p.Asks(ctx)
				var calls sync.WaitGroup
				for i, name := range some {
					calls.Go(func() { found[i], errs[i] = look(ctx, name) })
				}
				calls.Wait()
				p.Answered()
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
			p.Asks(ctx)
		}
	}
}

// Pace is that of a listing. Between two questions, it rests for as long as the answer to the first one took, but for a
// millisecond at most: no step of a server should take longer, so the rest of an answer's time is that of the network.
// Without it, a list of many locks would keep a server busy for a minute.
type Pace struct {
	at   time.Time     // when the store was asked, or has answered
	took time.Duration // what the last answer took
}

// Asks waits until the store may be asked, or ctx ends.
func (p *Pace) Asks(ctx context.Context) {
	if rest := min(p.took, time.Millisecond) - time.Since(p.at); rest > 0 {
		select {
		case <-time.After(rest):
		case <-ctx.Done():
		}
	}
	p.at = time.Now()
}

// Answered notes that the store has answered.
func (p *Pace) Answered() {
	p.took = time.Since(p.at)
	p.at = time.Now()
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
