package memory_test

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func request(key, token string) backend.Request {
	return backend.Request{Key: key, Token: token, TTL: time.Second}
}

// An attempt that is delivered twice is granted twice, with one token and one TTL.
func TestAcquireIsIdempotent(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		first, err := b.Acquire(t.Context(), request("k", "a"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(600 * time.Millisecond)
		again, err := b.Acquire(t.Context(), request("k", "a"))
		if err != nil || !reflect.DeepEqual(again, first) {
			t.Errorf("the second delivery answered %v, %v; the first %v", again, err, first)
		}
		time.Sleep(400 * time.Millisecond)
		if _, err := b.Acquire(t.Context(), request("k", "b")); err != nil {
			t.Errorf("the second delivery prolonged the lock: %v", err)
		}
	})
}

// An extension that is shorter than what is left of the lease leaves it as it is.
func TestExtendNeverShortens(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		if _, err := b.Acquire(t.Context(), request("k", "a")); err != nil {
			t.Fatal(err)
		}
		short := request("k", "a")
		short.TTL = 100 * time.Millisecond
		if err := b.Extend(t.Context(), short); err != nil {
			t.Error(err)
		}
		time.Sleep(999 * time.Millisecond)
		if err := b.Extend(t.Context(), short); err != nil {
			t.Errorf("a millisecond before the end of its first TTL: %v", err)
		}
		time.Sleep(99 * time.Millisecond)
		if _, err := b.Acquire(t.Context(), request("k", "b")); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("a millisecond before the end of the extension: %v", err)
		}
		time.Sleep(time.Millisecond)
		if _, err := b.Acquire(t.Context(), request("k", "b")); err != nil {
			t.Errorf("after it: %v", err)
		}
	})
}

func TestCrashedHoldersLeaveNothing(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		for round := range 100 {
			for i := range 100 {
				if _, err := b.Acquire(t.Context(), request(fmt.Sprint(round, "/", i), "a")); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
		}
		if n := memory.Len(b); n > 300 {
			t.Errorf("%d of 10,000 expired locks are still stored", n)
		}
	})
}

// A store that has granted fewer than 7,812 blocks a second has tokens below those of a store that is made afterwards.
func TestBlocksThatOutrunTheClock(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			fences int
			every  time.Duration
			ahead  int64
		}{
			{backend.MaxFences, 128 * time.Microsecond, 0},
			{backend.MaxFences, 64 * time.Microsecond, 64_000},
			{1, time.Microsecond, 0},
		} {
			b, last := memory.NewBackend(), uint64(0)
			for n := range 1000 {
				req := request(fmt.Sprint(n), "o") // all keys share one counter
				req.Fences = tt.fences
				g, err := b.Acquire(t.Context(), req)
				if err != nil || g.Fences != tt.fences {
					t.Fatalf("got %d tokens and %v, want %d", g.Fences, err, tt.fences)
				}
				last = g.Fence + uint64(g.Fences) - 1
				time.Sleep(tt.every)
			}
			g, err := memory.NewBackend().Acquire(t.Context(), request("k", "o"))
			if err != nil {
				t.Fatal(err)
			}
			if ahead := int64(last - g.Fence + 1); ahead != tt.ahead {
				t.Errorf("%d tokens every %v: %d µs ahead, want %d", tt.fences, tt.every, ahead, tt.ahead)
			}
		}
	})
}
