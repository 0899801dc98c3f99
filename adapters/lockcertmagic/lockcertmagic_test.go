package lockcertmagic_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockcertmagic"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertest"
)

var (
	_ certmagic.Storage          = (*lockcertmagic.Storage)(nil)
	_ certmagic.TryLocker        = (*lockcertmagic.Storage)(nil)
	_ certmagic.LockLeaseRenewer = (*lockcertmagic.Storage)(nil)
)

const name = "issue_cert_example.com"

// world is a store of locks, and the Storage of this process.
type world struct {
	*testing.T
	store *lockertest.Store
	*lockcertmagic.Storage
	other locker.Locker // that of another process
}

func inVirtualTime(t *testing.T, f func(w *world)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		w := &world{T: t, store: lockertest.NewStore()}
		w.Storage = lockcertmagic.New(&certmagic.FileStorage{Path: "/certificates"}, w.client())
		w.other = w.client()
		f(w)
		if n := lockcertmagic.Claims(w.Storage); n > 0 {
			t.Errorf("%d names are claimed in the end", n)
		}
	})
}

func (w *world) client() *locker.Client {
	c := locker.NewClient(w.store)
	w.Cleanup(func() { _ = c.Close() })
	return c
}

// must fails the test unless err is nil, or matches want.
func (w *world) must(err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Errorf("%v, want %v", err, want)
	}
}

// lose makes the holder of the lock lose it.
func (w *world) lose() {
	w.Helper()
	w.must(w.store.Lose(w.Context(), name), nil)
	synctest.Wait()
}

// held reports whether the lock is held.
func (w *world) held() bool {
	w.Helper()
	lease, err := w.other.TryLock(w.Context(), name)
	if err == nil {
		err = lease.Unlock(w.Context())
		w.must(err, nil)
		return false
	}
	w.must(err, locker.ErrHeld)
	return true
}

func TestGoroutinesTakeTurns(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		second := lockcertmagic.New(w.Storage, w.other)
		inside, runs := 0, 0
		var wg sync.WaitGroup
		for range 10 {
			for _, s := range []*lockcertmagic.Storage{w.Storage, second} {
				wg.Go(func() {
					w.must(s.Lock(w.Context(), name), nil)
					if inside++; inside > 1 {
						w.Error("two at a time")
					}
					time.Sleep(time.Second)
					inside--
					runs++
					w.must(s.Unlock(w.Context(), name), nil)
				})
			}
		}
		wg.Wait()
		if runs != 20 {
			w.Errorf("%d of 20 had a turn", runs)
		}
	})
}

func TestNamesAreIndependent(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.must(w.Lock(w.Context(), name), nil)
		w.must(w.Lock(w.Context(), "storage_clean"), nil)
		w.must(w.Unlock(w.Context(), name), nil)
		w.must(w.Unlock(w.Context(), "storage_clean"), nil)
	})
}

// A goroutine that has lost its lock and does not know that must not release the lock of the next one.
func TestUnlockSparesTheSuccessor(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.must(w.Lock(w.Context(), name), nil)
		next := make(chan error, 1)
		go func() { next <- w.Lock(w.Context(), name) }()
		w.lose()
		if len(next) > 0 {
			w.Error("another goroutine has the name before the one that has lost its lock has called Unlock")
		}
		w.must(w.Unlock(w.Context(), name), locker.ErrLost)
		w.must(<-next, nil)
		if !w.held() {
			w.Error("the lock of the next goroutine is released")
		}
		w.must(w.Unlock(w.Context(), name), nil)
	})
}

func TestUnlockReportsALoss(t *testing.T) {
	for what, lose := range map[string]func(w *world){
		"the lock is gone": (*world).lose,
		"another process has it": func(w *world) {
			w.lose()
			_, err := w.other.TryLock(w.Context(), name)
			w.must(err, nil)
		},
		"an outage": func(w *world) {
			w.store.Down()
			time.Sleep(time.Minute)
			w.store.Up()
		},
	} {
		t.Run(what, func(t *testing.T) {
			inVirtualTime(t, func(w *world) {
				w.must(w.Lock(w.Context(), name), nil)
				lose(w)
				w.must(w.Unlock(w.Context(), name), locker.ErrLost)
			})
		})
	}
}

// alarming has leases whose Err panics, as a hook does that learns there of a loss.
type alarming struct{ locker.Locker }

func (a alarming) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	l, err := a.Locker.Lock(ctx, key, opts...)
	return alarm{l}, err
}

type alarm struct{ locker.Lease }

func (alarm) Err() error { panic("boom") }

func TestHookThatPanicsAtUnlockLeavesNoLock(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.Storage = lockcertmagic.New(&certmagic.FileStorage{Path: "/certificates"}, alarming{w.client()})
		w.must(w.Lock(w.Context(), name), nil)
		func() {
			defer func() {
				if recover() != "boom" {
					w.Error("the panic is gone")
				}
			}()
			_ = w.Unlock(w.Context(), name)
		}()
		if w.held() {
			w.Error("the lock is held")
		}
	})
}

func TestUnlockWithoutLock(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.must(w.Unlock(w.Context(), name), locker.ErrUnlocked)
		w.must(w.Lock(w.Context(), name), nil)
		ended, cancel := context.WithCancel(w.Context())
		cancel()
		w.must(w.Unlock(ended, name), nil)
		w.must(w.Unlock(w.Context(), name), locker.ErrUnlocked)
		w.must(w.RenewLockLease(w.Context(), name, time.Minute), locker.ErrUnlocked)
	})
}

// After a release that is not answered, the name is free for the next goroutine nevertheless.
func TestUnlockDuringAnOutage(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.must(w.Lock(w.Context(), name), nil)
		w.store.Down()
		w.must(w.Unlock(w.Context(), name), locker.ErrUnavailable)
		w.must(w.Lock(w.Context(), name), locker.ErrUnavailable)
		w.store.Up()
		w.must(w.Lock(w.Context(), name), nil)
		w.must(w.Unlock(w.Context(), name), nil)
	})
}

func TestLockEndsWithItsContext(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		w.must(w.Lock(w.Context(), name), nil)
		err := w.Lock(ctx, name)
		w.must(err, context.DeadlineExceeded)
		w.must(err, locker.ErrHeld)
		w.must(w.Unlock(w.Context(), name), nil)
	})
}

func TestTryLock(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		try := func(want bool, wantErr error) {
			t.Helper()
			got, err := w.TryLock(w.Context(), name)
			w.must(err, wantErr)
			if got != want {
				t.Errorf("TryLock returned %v", got)
			}
		}
		lease, err := w.other.TryLock(w.Context(), name)
		w.must(err, nil)
		try(false, nil)
		w.must(lease.Unlock(w.Context()), nil)
		try(true, nil)
		try(false, nil)
		w.lose()
		try(false, nil) // the goroutine that has lost it goes on
		w.must(w.Unlock(w.Context(), name), locker.ErrLost)
		w.store.Down()
		try(false, locker.ErrUnavailable)
		w.store.Up()
		try(true, nil)
		w.must(w.Unlock(w.Context(), name), nil)
	})
}

func TestRenewLockLease(t *testing.T) {
	renew := func(w *world, want error) {
		w.Helper()
		w.must(w.RenewLockLease(w.Context(), name, time.Hour), want)
	}
	for what, f := range map[string]func(w *world){
		"held": func(w *world) {
			renew(w, nil)
			time.Sleep(time.Hour)
			renew(w, nil)
		},
		"lost": func(w *world) {
			w.lose()
			renew(w, nil)
			if !w.held() {
				w.Error("the lock was not acquired again")
			}
		},
		"lost in an outage, and the store has not noticed": func(w *world) {
			w.store.Down()
			time.Sleep(time.Minute)
			renew(w, locker.ErrUnavailable)
			w.store.Up()
			renew(w, nil)
		},
		"another process has it": func(w *world) {
			w.lose()
			lease, err := w.other.Lock(w.Context(), name)
			w.must(err, nil)
			renewed := make(chan error, 1)
			go func() { renewed <- w.RenewLockLease(w.Context(), name, time.Hour) }()
			time.Sleep(time.Minute)
			if len(renewed) > 0 {
				w.Error("RenewLockLease did not wait for the lock")
			}
			w.must(lease.Unlock(w.Context()), nil)
			w.must(<-renewed, nil)
		},
		"down": func(w *world) {
			w.store.Down()
			renew(w, locker.ErrUnavailable)
			w.store.Up()
		},
	} {
		t.Run(what, func(t *testing.T) {
			inVirtualTime(t, func(w *world) {
				w.must(w.Lock(w.Context(), name), nil)
				f(w)
				w.must(w.Unlock(w.Context(), name), nil)
				if w.held() {
					w.Error("the lock is held after Unlock")
				}
			})
		})
	}
}

// The store may have a lock for longer than its holder.
func TestRenewLockLeaseDoesNotWaitForItself(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		s := lockcertmagic.New(w.Storage, locker.Defaults(locker.MaxHold(time.Minute))(w.client()))
		w.must(s.Lock(w.Context(), name), nil)
		time.Sleep(time.Minute)
		if !w.held() {
			w.Fatal("the store does not have the lock any more, so this shows nothing")
		}
		lost := time.Now()
		w.must(s.RenewLockLease(w.Context(), name, time.Hour), nil)
		if took := time.Since(lost); took > 0 {
			w.Errorf("RenewLockLease has waited for %v", took)
		}
		w.must(s.Unlock(w.Context(), name), nil)
	})
}

// certmagic.CleanUpOwnLocks releases all locks of the process, whatever goroutines do with them.
func TestUnlockDuringRenewLockLease(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.must(w.Lock(w.Context(), name), nil)
		w.lose()
		lease, err := w.other.Lock(w.Context(), name)
		w.must(err, nil)
		renewed := make(chan error, 1)
		go func() { renewed <- w.RenewLockLease(w.Context(), name, time.Hour) }()
		synctest.Wait()
		w.must(w.Unlock(w.Context(), name), locker.ErrLost)
		w.must(lease.Unlock(w.Context()), nil)
		w.must(<-renewed, locker.ErrUnlocked)
		if w.held() {
			w.Error("the lock is held after Unlock")
		}
	})
}

// What certmagic logs of a storage must not contain the fields of the one behind it.
func TestString(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		for _, tt := range []struct {
			s    certmagic.Storage
			want string
		}{
			{&certmagic.FileStorage{Path: "/certificates"}, "FileStorage:/certificates"},
			{struct{ certmagic.Storage }{}, "struct { certmagic.Storage }"},
		} {
			if got := lockcertmagic.New(tt.s, w.other).String(); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		}
	})
}
