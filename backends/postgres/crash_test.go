package postgres_test

import (
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

// A server that is killed right after its answer has what it has answered, and issues greater tokens, also if its data
// are older than that.
func TestCrashAfterTheAnswer(t *testing.T) {
	t.Parallel()
	s := migrated(t, "wal_writer_delay=10s") // only commits that wait write the log
	p := pool(t, s.URL("postgres"))
	l := client(t, s.URL("postgres"))
	look := func(key string) (i inspect.Inspection) {
		t.Helper()
		inspector, _ := locker.As[inspect.Inspector](l)
		eventually(t, "the server answers", func() bool {
			var err error
			i, err = inspector.Inspect(t.Context(), key)
			return err == nil
		})
		return i
	}
	grant := func(key string) (lease locker.Lease) {
		t.Helper()
		eventually(t, "the server grants", func() bool {
			var err error
			lease, err = l.TryLock(t.Context(), key, locker.TTL(time.Minute), locker.NoRenewal())
			return err == nil
		})
		return lease
	}
	granted := lock(t, l, "granted", locker.TTL(time.Minute), locker.NoRenewal())
	s.Restart()
	if i := look("granted"); i.State != inspect.Held || i.Fence != granted.Fence() {
		t.Errorf("after a crash: got %+v, want the lock held with the token %d", i, granted.Fence())
	}
	must(t, "ExtendTTL", locker.ExtendTTL(t.Context(), granted, time.Hour))
	s.Restart()
	if i := look("granted"); i.Remaining < 30*time.Minute {
		t.Errorf("after a crash: got %v left, want the hour of the extension", i.Remaining)
	}
	kept := lock(t, l, "kept", locker.MinHold(time.Minute))
	must(t, "Unlock", kept.Unlock(t.Context()))
	s.Restart()
	if i := look("kept"); i.State != inspect.Kept {
		t.Errorf("after a crash: got %+v, want the lock kept", i)
	}

	run(t, p, "SELECT setval('locker.fences', 1)") // as in older data that were restored
	s.Restart()
	if after := grant("restored"); after.Fence() <= kept.Fence() {
		t.Errorf("got token %d from older data, after %d", after.Fence(), kept.Fence())
	}

	// The clock helps no more: it was far ahead, and was set back.
	run(t, pool(t, s.URL("postgres")), "SELECT setval('locker.fences', 4000000000000000000)")
	ahead := grant("ahead")
	s.Restart()
	if behind := grant("behind"); behind.Fence() <= ahead.Fence() {
		t.Errorf("after a crash: got token %d after %d", behind.Fence(), ahead.Fence())
	}
}
