package redlock

import (
	"context"
	"crypto/sha256"
	"iter"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/listing"
)

// List implements inspect.Lister. It goes through the keys of all nodes, one node after the other, and asks all of them
// about each key. What it has listed it remembers by 16 bytes each, so as not to list it once for each node.
//
// A lock has a majority of the nodes. So it is complete if so many nodes have answered that each majority has one of
// them.
func (b *majority) List(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
	return func(yield func(inspect.Listed, error) bool) {
		seen := make(map[[16]byte]bool)
		hash := func(key string) [16]byte {
			sum := sha256.Sum256([]byte(key))
			return [16]byte(sum[:])
		}
		errs := make([]error, len(b.nodes))
		silent := 0
		for i, n := range b.nodes {
			fresh := func(yield func([]string, error) bool) {
				for keys, err := range n.Pages(ctx, prefix) {
					if err != nil {
						errs[i] = err
						silent++
						return
					}
					var others []string
					for _, key := range keys {
						if !seen[hash(key)] {
							others = append(others, key)
						}
					}
					if !yield(others, nil) {
						return
					}
				}
			}
			for l, err := range listing.Of(ctx, fresh, listing.By(b.Inspect)) {
				if !yield(l, err) || err != nil {
					return
				}
				seen[hash(l.Key)] = true
			}
			switch {
			case b.closed():
				yield(inspect.Listed{}, locker.ErrClosed)
				return
			case ctx.Err() != nil:
				yield(inspect.Listed{}, ctx.Err())
				return
			}
		}
		if silent > len(b.nodes)/2 {
			yield(inspect.Listed{}, b.quorumError("list", noQuorum{}, func(i int) (Outcome, error) {
				if errs[i] == nil {
					return Agreed, nil
				}
				return faultOf(errs[i]), errs[i]
			}))
		}
	}
}
