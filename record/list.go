package record

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/listing"
	"github.com/golocker/locker/internal/core/placename"
	"github.com/golocker/locker/internal/core/tick"
)

// List implements [inspect.Lister], if the Store is a [Lister]. Locks whose keys are so long that the names of their
// records do not tell them have no Key, and are Cut.
//
// It remembers no records. So on a store without a clock, Seen says how long this process has known a lock that it has
// looked at before in another way, and is a moment otherwise.
func (b *Backend) List(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
	store, ok := b.store.(Lister)
	if !ok {
		return func(yield func(inspect.Listed, error) bool) {
			yield(inspect.Listed{}, fmt.Errorf("%w: the store of records does not list them", errors.ErrUnsupported))
		}
	}
	prefix = b.prefix + prefix
	return listing.Of(ctx, b.pages(ctx, store, prefix), func(ctx context.Context, l listed) ([]inspect.Listed, error) {
		return b.locksOf(ctx, l, prefix)
	})
}

// listed is a record of a page, and what time it was then, or later.
type listed struct {
	Listed
	asked time.Time
	at    instant
}

// pages yields the records that may have locks whose names begin with prefix.
func (b *Backend) pages(ctx context.Context, store Lister, prefix string) iter.Seq2[[]listed, error] {
	return func(yield func([]listed, error) bool) {
		names := []string{escaped(recordPrefix(prefix))}
		switch {
		case len(names[0]) > maxName:
			names[0] = hashedPrefix
		case prefix != "":
			names = append(names, hashedPrefix)
		}
		for _, n := range names {
			for from, more := "", true; more; more = from != "" {
				page, next, err := b.page(ctx, store, n, from)
				if !yield(page, err) || err != nil {
					return
				}
				from = next
			}
		}
	}
}

// recordPrefix returns what the keys of all records begin with that may have locks whose names begin with prefix. The
// name of a lock that shares its record with others may go on in another way than that of the record.
func recordPrefix(prefix string) string {
	if at := strings.LastIndexByte(prefix, '@'); at > 0 && strings.Trim(prefix[at+1:], "0123456789-:.TZ") == "" {
		return prefix[:at] // of a tick
	}
	if at := strings.LastIndexByte(prefix, '#'); at > 0 && (prefix[at-1] == '#' || prefix[at-1] == '}') {
		return prefix[:at+1] // of a place
	}
	return prefix
}

// page asks for a page.
func (b *Backend) page(ctx context.Context, store Lister, prefix, from string) ([]listed, string, error) {
	if err := b.usable(); err != nil {
		return nil, "", err
	}
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	asked := time.Now()
	ctx, tells := b.asks(ctx)
	found, next, err := store.List(ctx, prefix, from)
	if err != nil {
		return nil, "", unavailable(err)
	}
	at, page := tells(), make([]listed, len(found))
	for i, r := range found {
		page[i] = listed{r, asked, at}
	}
	return page, next, nil
}

// locksOf returns the locks of a record whose names begin with prefix. Those of others than this library are none.
func (b *Backend) locksOf(ctx context.Context, l listed, prefix string) ([]inspect.Listed, error) {
	job, _, _ := strings.Cut(l.Name, tickSuffix)
	isCut := strings.HasPrefix(l.Name, hashedPrefix)
	key, ok := unescaped(job)
	if !ok && !isCut {
		return nil, nil
	}
	s, err := b.opened(ctx, &l)
	first, _, isGroup := placename.Group(key)
	switch {
	case errors.Is(err, locker.ErrForeignKey):
		return nil, nil
	case err != nil:
		return nil, err
	case s.locks == nil, !isCut && (s.group != nil) != isGroup, isGroup && first != key: // Inspect looks elsewhere
		return nil, nil
	}
	var all []inspect.Listed
	add := func(name string, i inspect.Inspection) {
		found := inspect.Listed{Key: strings.TrimPrefix(name, b.prefix), At: l.asked, Inspection: i}
		if isCut {
			found.Key, found.Cut = "", true
		}
		if i.State != inspect.Free && (isCut || strings.HasPrefix(name, prefix)) {
			all = append(all, found)
		}
	}
	front := strings.TrimRight(first, "0123456789") // of the names of a group
	for at, c := range s.locks {
		found, name := s.entry(at), key
		if isGroup {
			name = front + at
		}
		add(name, inspection(&found))
		ticks, _ := ticksOf(c.Ticks)
		for _, t := range ticks {
			add(tick.Name(key, time.UnixMilli(t.at)), t.inspection())
		}
	}
	return all, nil
}

// opened returns what a record says, for which it asks the store unless the page has told it.
func (b *Backend) opened(ctx context.Context, l *listed) (*sheet, error) {
	if err := b.usable(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, unavailable(err)
	}
	if l.Text == nil {
		ctx, cancel := b.bounded(ctx, b.timeout)
		defer cancel()
		ctx, tells := b.asks(ctx)
		l.asked = time.Now()
		text, _, err := b.store.Get(ctx, l.Name)
		if err != nil {
			return nil, unavailable(err)
		}
		l.Text, l.at = text, tells()
	}
	s := &sheet{name: l.Name, version: "of a page", at: l.at}
	if l.Text == nil {
		return s, nil // nobody has the lock
	}
	return s, s.fill(l.Text, knows(l.Text, groupFormat) == nil, b.seen.known)
}
