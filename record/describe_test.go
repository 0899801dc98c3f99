package record_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/record"
)

// What Describe says of the records of a lock in its life.
func TestDescribe(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := recordstore.New()
		l := record.New(s)
		defer l.Close()
		ctx := context.Background()
		says := func(when string, want record.Description) {
			t.Helper()
			got, err := record.Describe([]byte(s.Text(record.NameOf("k"))))
			if err != nil || got != want {
				t.Errorf("%s: %+v, %v, expected %+v", when, got, err, want)
			}
		}
		lease, err := l.TryLock(ctx, "k", locker.TTL(time.Minute), locker.Label("web-7"), locker.MinHold(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		says("acquired", record.Description{State: inspect.Held, Holder: "web-7", Length: time.Minute})
		time.Sleep(10 * time.Second)
		if err := lease.Extend(ctx); err != nil {
			t.Fatal(err)
		}
		says("extended", record.Description{
			State: inspect.Held, Holder: "web-7", Length: time.Minute, Age: 10 * time.Second,
		})
		if err := lease.Unlock(ctx); err != nil {
			t.Fatal(err)
		}
		kept, err := record.Describe([]byte(s.Text(record.NameOf("k"))))
		if err != nil || kept.State != inspect.Kept || len(kept.Holder) != 8 || kept.Length != time.Hour-10*time.Second {
			t.Errorf("kept: %+v, %v", kept, err)
		}
		s.Put(record.NameOf("k"), record.Free(7))
		says("free", record.Description{State: inspect.Free})
		s.Put(record.NameOf("k"), record.Text("0123456789", 7, 7, time.Second))
		says("without a label", record.Description{State: inspect.Held, Holder: "01234567", Length: time.Second})
		if _, err := record.Describe([]byte(`{"kind":"Lease"}`)); !errors.Is(err, locker.ErrForeignKey) {
			t.Errorf("another text: %v", err)
		}
	})
}
