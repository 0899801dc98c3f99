package conformance

import (
	"context"
	"iter"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

// lists has f change each lock of a listing, of which it is the n-th. What f returns false for is left out.
func (s *store) lists(f func(n int, l *inspect.Listed) bool) {
	list := s.list
	s.list = func(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
		return func(yield func(inspect.Listed, error) bool) {
			n := -1
			for l, err := range list(ctx, prefix) {
				if n++; (err != nil || f(n, &l)) && !yield(l, err) {
					return
				}
			}
		}
	}
}

// quietLister forgets the errors of listings.
type quietLister struct{ locker.Locker }

func (q quietLister) Unwrap() locker.Locker { return q.Locker }

func (q quietLister) List(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
	return func(yield func(inspect.Listed, error) bool) {
		store, _ := locker.As[inspect.Lister](q.Locker)
		for l, err := range store.List(ctx, prefix) {
			if err != nil || !yield(l, nil) {
				return
			}
		}
	}
}
