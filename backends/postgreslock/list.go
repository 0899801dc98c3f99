package postgreslock

import (
	"bytes"
	"context"
	"iter"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/listing"
)

// page is how many rows of the index a request of List looks at. That takes the server half a millisecond.
const page = 50

// rows is a page of locks.
type rows struct {
	last                    []byte
	names                   [][]byte
	owners, labels          []string
	remaining, ages, fences []int64
	waiting                 []int64
}

func readRows(row pgx.Row) (r rows, err error) {
	err = row.Scan(&r.last, &r.names, &r.owners, &r.labels, &r.remaining, &r.ages, &r.fences, &r.waiting)
	return r, err
}

// List implements [inspect.Lister]. It goes through the index, a page with each request, at a [listing.Pace].
func (b *store) List(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
	return func(yield func(inspect.Listed, error) bool) {
		from := []byte(b.prefix + prefix)
		from = from[:min(maxName, len(from))] // longer names are cut there
		first := from
		end := after(from)
		var p listing.Pace
		for {
			p.Asks(ctx)
			at := time.Now()
			r, err := b.list(ctx, from, end)
			p.Answered()
			if err != nil {
				yield(inspect.Listed{}, err)
				return
			}
			for i, name := range r.names {
				l := inspect.Listed{
					Key: b.keyOf(name), Cut: len(name) > maxName, At: at,
					Inspection: inspect.Inspection{
						State: inspect.Held, Owner: r.owners[i], Label: r.labels[i], Fence: uint64(r.fences[i]),
						Remaining: time.Duration(r.remaining[i]) * time.Microsecond,
						Held:      max(0, time.Duration(r.ages[i])*time.Microsecond), Waiting: int(r.waiting[i]),
					},
				}
				if l.Owner == "" {
					l.State = inspect.Kept
				}
				if !yield(l, nil) {
					return
				}
			}
			if r.last == nil {
				break
			}
			from = append(bytes.Clone(r.last), 0)
		}
		b.listGroups(ctx, first, end, yield)
	}
}

// listGroups yields the groups, and asks for each of them.
func (b *store) listGroups(ctx context.Context, from, end []byte, yield func(inspect.Listed, error) bool) {
	for {
		names, err := b.groups(ctx, from, end)
		for _, name := range names {
			l := inspect.Listed{Key: b.keyOf(name), Cut: len(name) > maxName, At: time.Now()}
			if l.Inspection, err = b.inspect(ctx, name); err != nil {
				break
			}
			if l.State != inspect.Free && !yield(l, nil) {
				return
			}
		}
		if err != nil {
			yield(inspect.Listed{}, err)
		}
		if err != nil || len(names) < page {
			return
		}
		from = append(bytes.Clone(names[page-1]), 0)
	}
}

// keyOf returns the key of a lock, or the beginning of a long one.
func (b *store) keyOf(name []byte) string {
	return strings.TrimPrefix(string(name[:min(maxName, len(name))]), b.prefix)
}

func (b *store) list(ctx context.Context, from, end []byte) (rows, error) {
	if err := b.enter(); err != nil { // for each page: the loop may be slow, and Close waits
		return rows{}, err
	}
	defer b.calls.Done()
	r, err := request(ctx, b, readRows, b.sql.list, from, end, page)
	return r, unavailable(err)
}

func (b *store) groups(ctx context.Context, from, end []byte) (names [][]byte, err error) {
	if err := b.enter(); err != nil { // as list does
		return nil, err
	}
	defer b.calls.Done()
	read := func(row pgx.Row) (names [][]byte, err error) { return names, row.Scan(&names) }
	names, err = request(ctx, b, read, b.sql.listGroups, from, end, page)
	return names, unavailable(err)
}

// after returns the first name that is greater than all that begin with prefix, or nil if there is none.
func after(prefix []byte) []byte {
	end := bytes.TrimRight(prefix, "\xff")
	if len(end) == 0 {
		return nil
	}
	end = bytes.Clone(end)
	end[len(end)-1]++
	return end
}
