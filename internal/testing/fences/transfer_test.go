package fences_test

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/transfer"
)

// A long job is passed on from one version of its program to the next while many of its writes are under way. What the
// old version still writes is refused once the new one has entered.
func TestLateWritesOfTheVersionBeforeAreRefused(t *testing.T) {
	d := sqlite(t)
	fences := fence.SQL{Dialect: d.dialect}
	db := d.open(t, fences)
	store := memory.NewBackend()
	first := locker.NewClient(store)
	defer first.Close()
	lease, err := first.TryLock(t.Context(), "job")
	must(t, err)
	const writers = 4
	for range 3 { // versions
		next := locker.NewClient(store)
		defer next.Close()
		before := fence.Of(lease, account)
		ended := make(chan struct{})
		var writing sync.WaitGroup
		for range writers {
			writing.Go(func() {
				for fences.InTx(t.Context(), db, before, pay(nothing)) == nil {
				}
				<-ended
				is(t, fences.InTx(t.Context(), db, before, func(context.Context, *sql.Tx) error {
					t.Error("the old version writes")
					return nil
				}), fence.ErrStale)
			})
		}
		text, err := transfer.Export(t.Context(), lease, time.Minute)
		must(t, err)
		lease, err = transfer.Resume(t.Context(), next, text)
		must(t, err)
		must(t, fences.InTx(t.Context(), db, fence.Of(lease, account), pay(nothing)))
		close(ended)
		writing.Wait()
	}
}
