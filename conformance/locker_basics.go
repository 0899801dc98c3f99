package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// contend lets several callers of each Locker acquire k repeatedly, with Lock and with TryLock. It calls inside for
// each lease, which must unlock it. asked is the time at which the successful call began.
func contend(t testing.TB, ls []locker.Locker, rounds int,
	inside func(lease locker.Lease, asked time.Time)) (holds int) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
	defer cancel()
	var wg sync.WaitGroup
	for _, l := range ls {
		for _, waits := range []bool{true, true, false, false} {
			holds += rounds
			wg.Go(func() {
				for range rounds {
					call := l.TryLock
					if waits {
						call = l.Lock
					}
					asked := time.Now()
					lease, err := call(ctx, "k", locker.TTL(longTTL))
					for pause := time.Millisecond; err != nil && !waits &&
						ctx.Err() == nil; pause = min(2*pause, 32*time.Millisecond) {
						// on a store of several nodes, an attempt may fail although nobody has acquired the lock
						time.Sleep(pause)
						asked = time.Now()
						lease, err = call(ctx, "k", locker.TTL(longTTL))
					}
					if err != nil {
						t.Errorf("repeated Lock or TryLock: expected a lease, seen %v", err)
						return
					}
					inside(lease, asked)
				}
			})
		}
	}
	wg.Wait()
	return holds
}

func mutualExclusion(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 3)
	var inside, counter atomic.Int32
	holds := contend(t, ls, 8, func(lease locker.Lease, _ time.Time) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("expected one holder, seen %d at once", n)
		}
		seen := counter.Load()
		time.Sleep(time.Millisecond)
		counter.Store(seen + 1) // not an atomic increment: the lock has to protect it
		inside.Add(-1)
		unlock(t, lease)
	})
	if int(counter.Load()) != holds {
		t.Errorf("expected %d increments under the lock, seen %d", holds, counter.Load())
	}
}

func tryLockHeld(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	lease := lock(t, ls[0], "k", locker.TTL(longTTL))
	for i, who := range []string{"the holder's client", "another client"} {
		start := time.Now()
		_, err := ls[i].TryLock(t.Context(), "k", locker.TTL(longTTL))
		wantError(t, "TryLock by "+who, err, locker.ErrHeld)
		if d := time.Since(start); d > slack {
			t.Errorf("TryLock by %s: expected an answer at once, seen one after %v", who, d)
		}
		if held := (*locker.HeldError)(nil); errors.As(err, &held) {
			h.wantRemaining(t, "TryLock by "+who, held.Remaining, longTTL)
		}
	}
	unlock(t, lease)
}

func leaseDescribesItself(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 1)
	tokens := map[string]bool{}
	for range 20 {
		start := time.Now()
		lease := lock(t, ls[0], "some key", locker.TTL(longTTL))
		if lease.Key() != "some key" {
			t.Errorf("Key: expected %q, seen %q", "some key", lease.Key())
		}
		if len(lease.Token()) < 16 || tokens[lease.Token()] {
			t.Errorf("Token: expected a fresh value of 16 characters or more, seen one of %d characters, used "+
				"before: %v",
				len(lease.Token()), tokens[lease.Token()])
		}
		tokens[lease.Token()] = true
		if valid := lease.Until().Sub(start); valid <= longTTL/2 || valid >= longTTL {
			t.Errorf("Until: expected a little less than the TTL of %v from now, seen %v", longTTL, valid)
		}
		if lease.Err() != nil || isDone(lease) {
			t.Errorf("expected an open lease, seen Err %v, Done closed %v", lease.Err(), isDone(lease))
		}
		unlock(t, lease)
		if err := lease.Err(); !errors.Is(err, locker.ErrUnlocked) || !isDone(lease) {
			t.Errorf("after Unlock: expected ErrUnlocked and Done closed, seen Err %v, Done closed %v", err,
				isDone(lease))
		}
	}
}

func unlockFrees(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	for i := range 10 {
		lease := lock(t, ls[i%2], "k", locker.TTL(longTTL))
		for range i % 3 { // a client may cache the answer of an attempt in between
			if other, err := ls[1-i%2].TryLock(t.Context(), "k"); err == nil {
				_ = other.Unlock(t.Context())
			}
		}
		unlock(t, lease)
	}
}

func keysAreIndependent(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 1)
	keys := []string{
		"a", "A", "a ", " a", "a/b", "a:b", "{a}", "{a}b", "a}b", "}{", "{", "{}", "{}a", "a{b}c{d}", "a\x00", "a\x00b",
		"\r\n", "*", "a*", "%61",
		"..", "a/../b", "käse", "kÄse", "\xff\xfe", "0", "';--", strings.Repeat("x", locker.MaxKey),
		strings.Repeat("x", locker.MaxKey-1),
	}
	var leases []locker.Lease
	for _, key := range keys {
		leases = append(leases, lock(t, ls[0], key, locker.TTL(longTTL)))
	}
	for i, lease := range leases {
		unlock(t, lease)
		for _, other := range leases[i+1:] {
			if err := other.Extend(t.Context()); err != nil {
				t.Fatalf("Unlock of %.40q: expected the lease on %.40q to go on, seen its Extend fail: %v", lease.Key(),
					other.Key(), err)
			}
		}
	}
}

func waiterIsServed(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	for i := range 2 { // a waiter of the holder's client, and one of another client
		holder := lock(t, ls[0], "k", locker.TTL(longTTL))
		held := 200 * time.Millisecond
		start := time.Now()
		var unlocked atomic.Bool
		answered := make(chan struct{}) // the waiter may have the lock before Unlock returns
		time.AfterFunc(held, func() {
			defer close(answered)
			unlocked.Store(true)
			unlock(t, holder)
		})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		lease, err := ls[i].Lock(ctx, "k", locker.TTL(longTTL))
		cancel()
		if err != nil {
			t.Fatalf("Lock: expected a lease after the holder's Unlock, seen %v", err)
		}
		if !unlocked.Load() {
			t.Errorf("Lock of a held lock: expected it to wait %v for the holder's Unlock, seen it return after %v",
				held, time.Since(start))
		}
		if late := time.Since(start) - held; late > slack {
			t.Errorf("expected the lock soon after Unlock, seen it after %v", late)
		}
		unlock(t, lease)
		await(t, "Unlock to return", answered, patience)
	}
}

func badInputIsRefused(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, bad := range []struct {
		key   string
		ttl   time.Duration
		label string
	}{
		{"", longTTL, ""}, {strings.Repeat("x", 1<<20), longTTL, ""}, {"k", 0, ""}, {"k", 1, ""},
		{"k", -time.Second, ""}, {"k", locker.MinTTL - 1, ""}, {"k", locker.MaxTTL + 1, ""}, {"k", 1<<63 - 1, ""},
		{"k", longTTL, "a|b"}, {"k", longTTL, "a+"}, {"k", longTTL, "a\nb"}, {"k", longTTL, "\xff"},
		{"k", longTTL, strings.Repeat("x", 65)},
	} {
		what := fmt.Sprintf("TTL %v and label %q with a key of %d bytes", bad.ttl, bad.label, len(bad.key))
		_, err := ls[0].TryLock(ctx, bad.key, locker.TTL(bad.ttl), locker.Label(bad.label))
		wantError(t, what, err, locker.ErrInvalid)
		_, err = ls[0].Lock(ctx, bad.key, locker.TTL(bad.ttl), locker.Label(bad.label))
		wantError(t, what, err, locker.ErrInvalid)
		if err != nil && len(err.Error()) > 500 {
			t.Errorf("%s: expected a short message, seen %d bytes", what, len(err.Error()))
		}
	}
	unlock(t, lock(t, ls[0], "k", locker.TTL(longTTL)))
}

func foreignKeyIsRefused(t testing.TB, h Harness) {
	ls, s := clients(t, h, 1)
	if s.Foreign == nil {
		t.Skip("the harness has no Foreign")
	}
	intact := s.Foreign("k")
	for what, lock := range map[string]func(context.Context, string, ...locker.Option) (locker.Lease, error){
		"Lock": ls[0].Lock, "TryLock": ls[0].TryLock,
	} {
		what += " of a key that is no lock"
		wantError(t, what, within(t, what, 0, func() error {
			_, err := lock(t.Context(), "k", locker.TTL(longTTL))
			return err
		}), locker.ErrForeignKey)
	}
	if intact != nil && !intact() {
		t.Error("expected what is not a lock to be left alone, seen it changed")
	}
}
