package filelock

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/golocker/locker/record"
)

const (
	// pageSize is how many names a page has. Each page takes all names of the directory, so it is large.
	pageSize = 10_000

	// maxPasses bounds how often the directory is read for a page.
	maxPasses = 5
)

// List implements [record.Lister]. A page has names only.
//
// POSIX leaves open whether a name is read whose file is replaced meanwhile, and some file systems put it behind what
// was read already. So the directory is read until a pass finds no name that those before have missed.
func (s *Store) List(ctx context.Context, prefix, from string) (page []record.Listed, next string, err error) {
	var names []string
	r := s.do(ctx, func() result {
		found, err := s.names(ctx, prefix, from)
		names = found
		return result{err: err}
	})
	if r.err != nil {
		return nil, "", r.err // do may have left the call to itself
	}
	if len(names) > pageSize {
		names = names[:pageSize]
		next = names[pageSize-1]
	}
	for _, name := range names {
		page = append(page, record.Listed{Name: name})
	}
	return page, next, nil
}

// names returns the first names behind from, in order: pageSize of them and one more, if there are so many.
func (s *Store) names(ctx context.Context, prefix, from string) (names []string, err error) {
	err = s.same()
	for n := range maxPasses {
		if err != nil || ctx.Err() != nil {
			break
		}
		before := len(names)
		if names, err = s.pass(names, prefix, from); n > 0 && len(names) == before {
			break
		}
	}
	if gone(err) {
		return nil, nil
	}
	return names, errors.Join(err, ctx.Err())
}

// pass adds to names what is read of the directory.
func (s *Store) pass(names []string, prefix, from string) ([]string, error) {
	dir, err := os.Open(s.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	sorted := func() []string {
		slices.Sort(names)
		names = slices.Compact(names)
		return names[:min(len(names), pageSize+1)]
	}
	for {
		some, err := dir.Readdirnames(1000)
		for _, name := range some {
			// What writers have begun has a dot in its name.
			if name > from && strings.HasPrefix(name, prefix) && !strings.Contains(name, ".") {
				names = append(names, name)
			}
		}
		if len(names) > 2*pageSize {
			names = sorted()
		}
		if errors.Is(err, io.EOF) {
			return sorted(), nil
		}
		if err != nil {
			return nil, err
		}
	}
}
