package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"testing"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func lock(t *testing.T, l locker.Locker, key string) locker.Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Unlock(context.Background()) })
	return lease
}

func TestHoldsOfALease(t *testing.T) {
	l := memory.New()
	t.Cleanup(func() { _ = l.Close() })
	lease := lock(t, l, "account:42")
	for _, resources := range [][]string{nil, {"42"}} {
		holds := fence.Of(lease, resources...)
		want := append(resources, "account:42")[0]
		if len(holds) != 1 || holds[0].Resource != want || holds[0].Token != lease.Fence() {
			t.Errorf("%+v", holds)
		}
	}
	all, err := locker.LockAll(t.Context(), l, []string{"b", "a"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = all.Unlock(context.Background()) })
	holds := fence.Of(all)
	if len(holds) != 2 || holds[0].Resource != "a" || holds[0].Token == 0 || holds[1].Resource != "b" ||
		holds[1].Token != all.FenceOf("b") {
		t.Errorf("%+v", holds)
	}
}

// What is refused before anything is sent: db and tx are nil.
func TestWhatIsRefused(t *testing.T) {
	l := memory.New()
	t.Cleanup(func() { _ = l.Close() })
	permits, readers := semaphore.New(l, 3), rwlock.New(l)
	both, err := locker.LockAll(t.Context(), permits, []string{"p1", "p2"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = both.Unlock(context.Background()) })
	all, err := locker.LockAll(t.Context(), l, []string{"b", "a"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = all.Unlock(context.Background()) })
	one := fence.Hold{Resource: "r", Token: 5}
	valid := fence.SQL{Dialect: fence.PostgreSQL}
	for name, c := range map[string]struct {
		fences fence.SQL
		holds  []fence.Hold
		want   error
	}{
		"permit":         {valid, fence.Of(lock(t, permits, "p")), fence.ErrNoToken},
		"permits":        {valid, fence.Of(both), fence.ErrNoToken},
		"shared":         {valid, fence.Of(lock(t, readers.Shared(), "s")), fence.ErrNoToken},
		"upgradeable":    {valid, fence.Of(lock(t, readers.Upgradeable(), "u")), fence.ErrNoToken},
		"no token":       {valid, []fence.Hold{{Resource: "r"}}, fence.ErrNoToken},
		"large token":    {valid, []fence.Hold{{Resource: "r", Token: math.MaxInt64 + 1}}, locker.ErrInvalid},
		"no name":        {valid, []fence.Hold{{Token: 5}}, locker.ErrInvalid},
		"no hold":        {valid, nil, locker.ErrInvalid},
		"the same twice": {valid, []fence.Hold{one, {Resource: "q", Token: 1}, one}, locker.ErrInvalid},
		"too many names": {valid, fence.Of(lock(t, l, "k"), "a", "b"), locker.ErrInvalid},
		"which is whose": {valid, fence.Of(all, "b", "a"), locker.ErrInvalid},
		"no dialect":     {fence.SQL{}, []fence.Hold{one}, locker.ErrInvalid},
		"injected name":  {fence.SQL{Dialect: fence.MySQL, Table: "f; DROP TABLE f"}, []fence.Hold{one}, locker.ErrInvalid},
		"no column":      {fence.SQL{Dialect: fence.MySQL, Token: "a b"}, []fence.Hold{one}, locker.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			db, tx := (*sql.DB)(nil), (*sql.Tx)(nil)
			for _, err := range []error{
				c.fences.InTx(t.Context(), db, c.holds, nil),
				c.fences.Enter(t.Context(), db, c.holds...),
				c.fences.Check(t.Context(), tx, c.holds...),
			} {
				if !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
			}
		})
	}
	exclusive := fence.Of(lock(t, readers.Exclusive(), "x"))
	if len(exclusive) != 1 || exclusive[0].Token == 0 {
		t.Errorf("%+v", exclusive)
	}
}
