package everystore

import (
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/internal/testing/storeurl"
	"github.com/golocker/locker/rwlock"
)

// Where the answer to an Extend tells that others wait, a reader that comes 50 ms after a writer began to wait for a
// slot does not share it, although its process has it all the time.
func TestReadersThatComeWhileAWriterWaits(t *testing.T) {
	const key = "readers"
	start := storeurl.Start(migrate)
	for _, name := range []string{"Redis", "PostgreSQL"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start[name](t)
			open := func() closer {
				l, err := config.Open(t.Context(), url)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close() })
				return l
			}
			reads, writes := open(), open()
			rw := rwlock.New(locker.Defaults(locker.TTL(time.Minute))(reads))
			first := steady.Lock(t, rw.Shared(), key)
			slot, _ := locker.LeaseAs[interface{ Unwrap() locker.Lease }](first)
			name := slot.Unwrap().Key()
			written := make(chan locker.Lease, 1)
			go func() {
				lease, err := rwlock.New(writes).Exclusive().Lock(t.Context(), key)
				if err != nil {
					t.Error(err)
				}
				written <- lease
			}()
			store, _ := locker.As[inspect.Inspector](reads)
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for end := time.Now().Add(hangLimit); ; <-tick.C {
				if i, err := store.Inspect(t.Context(), name); err == nil && i.Waiting > 0 {
					break
				}
				if time.Now().After(end) {
					t.Fatal("the writer does not wait for the slot")
				}
			}
			waits := time.Now()
			for {
				came := time.Now()
				next, err := rw.Shared().TryLock(t.Context(), key)
				if errors.Is(err, locker.ErrHeld) {
					break
				}
				if came.Sub(waits) > time.Minute {
					t.Fatalf("a reader is not refused: %v", err)
				}
				if err != nil { // the machine stands still
					continue
				}
				if late := came.Sub(waits); late > 50*time.Millisecond {
					t.Errorf("a reader that came %v after a writer began to wait has %s", late, name)
				}
				steady.Unlock(t, next)
			}
			steady.Unlock(t, first)
			if lease := <-written; lease != nil {
				steady.Unlock(t, lease)
			}
		})
	}
}
