package record_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/record"
)

// A program that looks at more locks than were once remembered, one after the other, gets them all when their holders
// are dead, also if a round takes longer than their TTL.
func TestManyKeysInTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		const keys = 10_100
		b := backendOf(t, s)
		attempt := func(n int) error {
			req := request(ttl)
			req.Key = fmt.Sprint("k", n)
			_, err := b.Acquire(t.Context(), req)
			return err
		}
		for n := range keys {
			s.Put(fmt.Sprint("k", n), record.Text("crashed", 1, 1, time.Second))
			if err := attempt(n); !errors.Is(err, locker.ErrHeld) {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(record.Patience(time.Second))
		for n := range keys {
			if err := attempt(n); err != nil {
				t.Fatalf("the second round, lock %d: %v", n, err)
			}
		}
	})
}

// A job that one long-lived program starts each night runs each night, though MinHold keeps its lock for hours.
func TestMinHoldOfANightlyJob(t *testing.T) {
	for _, keep := range []time.Duration{time.Hour, 23 * time.Hour} {
		inBubble(t, func(t *testing.T, s *recordstore.Store) {
			l := record.New(s)
			defer l.Close()
			for night := range 30 {
				lease, err := l.TryLock(t.Context(), "report", locker.MinHold(keep))
				if err != nil {
					t.Fatalf("night %d: %v", night, err)
				}
				time.Sleep(time.Minute)
				if err := lease.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(24*time.Hour - time.Minute)
			}
		})
	}
}

// A process knows since when it has had a lock that it did not release. So it need not watch it like that of another.
func TestOwnLockThatHasEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b := backendOf(t, s)
		first := acquire(t, b, ttl)
		if err := b.Extend(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		time.Sleep(record.Patience(ttl) - 1)
		wantHeld(t, b, "just before the end")
		time.Sleep(time.Nanosecond)
		acquire(t, b, ttl)
	})
}

// What a Backend remembers is bounded. What nobody has looked at for a day is forgotten. If there is more than that,
// what is known stays, so that it counts as free one day, and what is new is not remembered.
func TestSightingsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b := backendOf(t, s)
		start := time.Now()
		for n := range record.MaxSightings {
			record.Saw(b, fmt.Sprint("k", n))
		}
		time.Sleep(record.LookedAt - 1)
		for n := range record.MaxSightings {
			if n%2 == 0 && !record.Saw(b, fmt.Sprint("k", n)).Equal(start) {
				t.Fatalf("record %d is forgotten", n)
			}
		}
		record.Saw(b, "new")
		if n := record.Sightings(b); n != record.MaxSightings {
			t.Errorf("%d records are remembered", n)
		}
		time.Sleep(time.Nanosecond)
		for n := range record.MaxSightings / 2 {
			record.Saw(b, fmt.Sprint("new", n))
		}
		if n := record.Sightings(b); n > record.MaxSightings/2+record.MaxSightings/2 {
			t.Errorf("%d records are remembered", n)
		}
		if !record.Saw(b, "k0").Equal(start) {
			t.Error("a record is forgotten though somebody has looked at it")
		}
		if record.Saw(b, "k1").Equal(start) {
			t.Error("a record is remembered though nobody has looked at it for a day")
		}
		time.Sleep(record.LookedAt)
		for n := range record.MaxSightings {
			record.Saw(b, fmt.Sprint("newer", n%record.OldSightings))
			if n%1000 == 0 {
				record.Saw(b, fmt.Sprint("one", n))
			}
		}
		if n := record.Sightings(b); n > record.MaxSightings {
			t.Errorf("%d records are remembered", n)
		}
	})
}

// Without a clock, an Inspection says what is known: when this process has seen the record for the first time, when it
// could take the lock, and for how long the owner has had it at least.
func TestInspectionWithoutAClock(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		inspection := func(b *record.Backend) inspect.Inspection {
			i, err := b.Inspect(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			return i
		}
		want := func(when string, i inspect.Inspection, state inspect.State, seen, remaining, held time.Duration) {
			t.Helper()
			if i.State != state || i.Seen != seen || i.Remaining != remaining || i.Held != held {
				t.Errorf("%s: %s, seen %v ago, held for %v, %v left; want %s, %v, %v, %v", when,
					i.State, i.Seen, i.Held, i.Remaining, state, seen, held, remaining)
			}
		}
		holder, other := backendOf(t, s), backendOf(t, s)
		want("no record", inspection(other), inspect.Free, 1, 0, 0)
		req := acquire(t, holder, ttl)
		time.Sleep(ttl / 2)
		if err := holder.Extend(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // the holder is dead
		want("the first look", inspection(other), inspect.Held, 1, ttl, ttl/2)
		time.Sleep(ttl / 5)
		left := record.Patience(ttl) - ttl/5
		want("the second look", inspection(other), inspect.Held, ttl/5, left, ttl/2+ttl/5)
		_, err := try(t, other, ttl)
		var held *locker.HeldError
		if !errors.As(err, &held) || held.Seen != ttl/5 || held.Remaining != left {
			t.Errorf("an attempt: %#v", err)
		}
		want("another process", inspection(backendOf(t, s)), inspect.Held, 1, ttl, ttl/2)
		time.Sleep(left)
		want("its time is over", inspection(other), inspect.Free, record.Patience(ttl), 0, 0)
		next := acquire(t, other, ttl)
		next.Keep = time.Hour
		if err := other.Release(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		want("kept", inspection(holder), inspect.Kept, 1, time.Hour, 0)
	})
}
