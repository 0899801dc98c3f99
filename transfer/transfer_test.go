package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertest"
	"github.com/golocker/locker/once"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
	"github.com/golocker/locker/transfer"
)

// world is a store with the Clients of two processes, in virtual time.
type world struct {
	*testing.T
	store    *lockertest.Store
	old, new *locker.Client
}

func run(t *testing.T, f func(w *world)) {
	t.Helper()
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		s := lockertest.NewStore()
		w := &world{t, s, locker.NewClient(s), locker.NewClient(s)}
		f(w)
		_, _ = w.old.Close(), w.new.Close()
	})
}

func (w *world) lock(l locker.Locker, opts ...locker.Option) locker.Lease {
	w.Helper()
	lease, err := l.TryLock(w.Context(), "k", opts...)
	if err != nil {
		w.Fatal(err)
	}
	return lease
}

func (w *world) export(lease locker.Lease, ttl time.Duration) transfer.Text {
	w.Helper()
	text, err := transfer.Export(w.Context(), lease, ttl)
	if err != nil {
		w.Fatal(err)
	}
	return text
}

func (w *world) resume(l locker.Locker, text transfer.Text, opts ...locker.Option) locker.Lease {
	w.Helper()
	lease, err := transfer.Resume(w.Context(), l, text, opts...)
	if err != nil {
		w.Fatal(err)
	}
	return lease
}

// held returns for how long the lock is taken, or 0 if it is free.
func (w *world) held() time.Duration {
	w.Helper()
	i, err := w.new.Inspect(w.Context(), "k")
	if err != nil {
		w.Fatal(err)
	}
	if i.State == inspect.Free {
		return 0
	}
	return i.Remaining
}

func (w *world) want(what string, err error, all ...error) {
	w.Helper()
	for _, want := range all {
		if !errors.Is(err, want) {
			w.Errorf("%s: %v", what, err)
		}
	}
}

// The exporter has no part in the lock any more, and whoever resumes it has all of it.
func TestLeaseIsPassedOn(t *testing.T) {
	run(t, func(w *world) {
		old := w.lock(w.old, locker.TTL(10*time.Second))
		text := w.export(old, time.Minute)
		w.want("Err of the lease", old.Err(), locker.ErrUnlocked)
		w.want("Extend of the lease", old.Extend(w.Context()), locker.ErrUnlocked)
		w.want("Unlock of the lease", old.Unlock(w.Context()), locker.ErrUnlocked)
		if left := w.held(); left != time.Minute {
			w.Errorf("the lock is taken for %v", left)
		}
		time.Sleep(50 * time.Second) // nobody renews it
		if left := w.held(); left != 10*time.Second {
			w.Errorf("the lock is taken for %v after 50 s", left)
		}
		if err := w.old.Close(); err != nil {
			w.Error(err)
		}
		next := w.resume(w.new, text, locker.TTL(5*time.Second), locker.Label("the next step"))
		if next.Key() != "k" || next.Fence() <= old.Fence() || next.Token() == old.Token() {
			w.Errorf("the lease of %q has the token %d, after %d", next.Key(), next.Fence(), old.Fence())
		}
		if until := time.Until(next.Until()); until > 5*time.Second {
			w.Errorf("it is valid for %v", until)
		}
		if i, _ := w.new.Inspect(w.Context(), "k"); i.Label != "the next step" || i.Remaining != 5*time.Second {
			w.Errorf("the lock shows %q for %v", i.Label, i.Remaining)
		}
		time.Sleep(time.Minute) // it is renewed
		if err := errors.Join(next.Err(), locker.Verify(w.Context(), next), next.Unlock(w.Context())); err != nil {
			w.Error(err)
		}
		if w.held() != 0 {
			w.Error("it is still taken")
		}
	})
}

// The errors say what has become of the text.
func TestTextThatIsNoUseSaysWhy(t *testing.T) {
	run(t, func(w *world) {
		text := w.export(w.lock(w.old), 0)
		lease := w.resume(w.new, text)
		_, err := transfer.Resume(w.Context(), w.old, text)
		w.want("a text that was used", err, transfer.ErrUsed, locker.ErrNotHeld)
		if err := lease.Unlock(w.Context()); err != nil {
			w.Error(err)
		}
		_, err = transfer.Resume(w.Context(), w.old, text)
		w.want("a text that was used, and the lock is free", err, transfer.ErrEnded, locker.ErrNotHeld)
		text = w.export(w.lock(w.old, locker.TTL(time.Second)), 0)
		time.Sleep(time.Second)
		_, err = transfer.Resume(w.Context(), w.new, text)
		w.want("a text whose lock has ended", err, transfer.ErrEnded)
		lease = w.lock(w.new)
		_, err = transfer.Resume(w.Context(), w.old, text)
		w.want("a text whose lock somebody else has", err, transfer.ErrUsed)
		if lease.Err() != nil {
			w.Error(lease.Err())
		}
		other := locker.NewClient(lockertest.NewStore())
		defer other.Close()
		_, err = transfer.Resume(w.Context(), other, text)
		w.want("a text of another store", err, transfer.ErrEnded)
		_, err = transfer.Resume(w.Context(), w.new, transfer.Text{})
		w.want("no text", err, transfer.ErrText)
		var of *locker.Error
		if !errors.As(err, &of) || of.Op != "resume" {
			w.Errorf("the operation is not in %v", err)
		}
	})
}

// Only a lock of its own is passed on. Whatever is refused is held as before.
func TestOtherLeasesAreNotExported(t *testing.T) {
	run(t, func(w *world) {
		rw := rwlock.New(w.old)
		refused := func(what string, lease locker.Lease, err error) {
			w.Helper()
			if err != nil {
				w.Fatal(what, err)
			}
			_, err = transfer.Export(w.Context(), lease, 0)
			w.want(what, err, errors.ErrUnsupported)
			if lease.Err() != nil {
				w.Errorf("%s: the lease has ended: %v", what, lease.Err())
			}
			_ = lease.Unlock(w.Context())
		}
		lease, err := semaphore.New(w.old, 3).TryLock(w.Context(), "k")
		refused("a permit", lease, err)
		lease, err = rw.Shared().TryLock(w.Context(), "k")
		refused("a shared lock", lease, err)
		lease, err = rw.Exclusive().TryLock(w.Context(), "k")
		refused("an exclusive lock", lease, err)
		all, err := locker.LockAll(w.Context(), w.old, []string{"a", "b"})
		refused("several locks", all, err)
		all, err = locker.LockAll(w.Context(), w.old, []string{"a"})
		refused("one of several locks", all, err)
		refused("the part of several locks", w.part(), nil)
		tick, err := once.Claim(w.Context(), w.old, "k", time.Now().Truncate(time.Minute))
		refused("a tick", tick, err)
	})
}

// part returns the lease of a lock of LockAll, as Drain returns it.
func (w *world) part() locker.Lease {
	w.Helper()
	c := locker.NewClient(w.store)
	if _, err := locker.LockAll(w.Context(), c, []string{"part"}); err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Context())
	cancel()
	return c.Drain(ctx)[0]
}

// ofPlaces is a store on which a permit, a reader and a writer are locks of places.
type ofPlaces struct{ *lockertest.Store }

func (o ofPlaces) Capabilities() backend.Capabilities {
	of := o.Store.Capabilities()
	of.Groups, of.Kinds = false, false
	return of
}

// A text is for a lock, and for no permit of that name.
func TestOtherLockersDoNotResume(t *testing.T) {
	run(t, func(w *world) {
		text := w.export(w.lock(w.old), 0)
		places := locker.NewClient(ofPlaces{w.store})
		for name, c := range map[string]*locker.Client{"groups": w.new, "places": places} {
			for what, l := range map[string]locker.Locker{
				"a semaphore": semaphore.New(c, 2), "readers": rwlock.New(c).Shared(), "writers": rwlock.New(c).Exclusive(),
			} {
				_, err := transfer.Resume(w.Context(), l, text)
				w.want(what+" of "+name, err, errors.ErrUnsupported)
			}
		}
		if err := w.resume(w.new, text).Unlock(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

// A term of an election is handed on by the election.
func TestTermIsNotExported(t *testing.T) {
	run(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		_ = election.Run(ctx, w.old, "k", election.Config{OnElected: func(_ context.Context, term election.Term) error {
			_, err := transfer.Export(ctx, term.Lease, 0)
			w.want("a term", err, errors.ErrUnsupported)
			w.want("its lease", term.Lease.Err(), nil)
			cancel()
			return nil
		}})
	})
}

// Those that wait, in this process and in others, wait for the one who resumes the lock.
func TestWaitersComeAfterWhoResumes(t *testing.T) {
	run(t, func(w *world) {
		old := w.lock(w.old)
		got := make(chan string, 4)
		for i, l := range []locker.Locker{w.old, w.new, w.old, w.new} {
			go func() {
				lease, err := l.Lock(w.Context(), "k")
				if err != nil {
					w.Error(err)
					return
				}
				got <- fmt.Sprint(i)
				_ = lease.Unlock(w.Context())
			}()
			synctest.Wait()
		}
		text := w.export(old, time.Minute)
		time.Sleep(30 * time.Second)
		select {
		case i := <-got:
			w.Errorf("the waiter %s has got the lock", i)
		default:
		}
		next := w.resume(w.new, text)
		wanted := locker.Wanted(next)
		select {
		case <-wanted:
		case <-time.After(time.Minute):
			w.Error("who resumes does not learn that others wait")
		}
		if err := next.Unlock(w.Context()); err != nil {
			w.Error(err)
		}
		for range cap(got) {
			select {
			case <-got:
			case <-time.After(time.Minute):
				w.Fatal("a waiter gets nothing")
			}
		}
	})
}

// A waiter gets the lock when nobody resumes it, and the text is no use then.
func TestExportedLockGoesToWhoWaits(t *testing.T) {
	run(t, func(w *world) {
		old := w.lock(w.old, locker.TTL(time.Hour))
		leases := make(chan locker.Lease)
		go func() {
			lease, err := w.new.Lock(w.Context(), "k")
			if err != nil {
				w.Error(err)
			}
			leases <- lease
		}()
		synctest.Wait()
		text, start := w.export(old, 10*time.Second), time.Now()
		lease := <-leases
		if took := time.Since(start); took != 10*time.Second {
			w.Errorf("it took %v", took)
		}
		_, err := transfer.Resume(w.Context(), w.old, text)
		w.want("Resume", err, transfer.ErrUsed)
		if err := lease.Unlock(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

// MinHold prolongs what the text lasts. MaxHold ends with the lease.
func TestHoldsOfTheExporter(t *testing.T) {
	run(t, func(w *world) {
		text := w.export(w.lock(w.old, locker.MinHold(time.Minute), locker.MaxHold(20*time.Second)), 15*time.Second)
		if left := w.held(); left != time.Minute {
			w.Errorf("the lock is taken for %v", left)
		}
		time.Sleep(50 * time.Second)
		next := w.resume(w.new, text)
		time.Sleep(time.Minute)
		if next.Err() != nil {
			w.Error(next.Err())
		}
		if err := next.Unlock(w.Context()); err != nil || w.held() != 0 {
			w.Error("who resumes has to hold it for long", err)
		}
		text = w.export(w.lock(w.old), 0)
		next = w.resume(w.new, text, locker.MinHold(time.Minute), locker.MaxHold(5*time.Second))
		time.Sleep(5 * time.Second)
		w.want("MaxHold", next.Err(), locker.ErrLost)
		if err := next.Unlock(w.Context()); err != nil || w.held() != 55*time.Second {
			w.Error("MinHold", w.held(), err)
		}
	})
}

// A Client that drains passes on what it holds, and takes nothing.
func TestDrainAndClose(t *testing.T) {
	run(t, func(w *world) {
		lease := w.lock(w.old)
		text := w.export(w.lock2("other"), 0)
		drained := make(chan int, 1)
		go func() { drained <- len(w.old.Drain(context.Background())) }()
		synctest.Wait()
		_, err := transfer.Resume(w.Context(), w.old, text)
		w.want("Resume", err, locker.ErrDraining)
		mine := w.export(lease, 0)
		if n := <-drained; n > 0 {
			w.Errorf("Drain finds %d leases", n)
		}
		_ = w.old.Close()
		_, err = transfer.Resume(w.Context(), w.old, text)
		w.want("Resume", err, locker.ErrClosed)
		_ = w.resume(w.new, text).Unlock(w.Context()) // it can still be used
		_ = w.resume(w.new, mine).Unlock(w.Context())
	})
}

func (w *world) lock2(key string) locker.Lease {
	w.Helper()
	lease, err := w.old.TryLock(w.Context(), key)
	if err != nil {
		w.Fatal(err)
	}
	return lease
}

// An Export that fails gives no text, and Unlock then releases what the store still has.
func TestExportThatFails(t *testing.T) {
	run(t, func(w *world) {
		lease := w.lock(w.old)
		_, err := transfer.Export(w.Context(), lease, time.Millisecond)
		w.want("a TTL that is too short", err, locker.ErrInvalid)
		w.want("the lease", lease.Err(), nil)
		w.store.Down()
		_, err = transfer.Export(w.Context(), lease, 0)
		w.want("a store that is down", err, locker.ErrUnavailable)
		w.want("the lease", lease.Err(), locker.ErrUnlocked)
		_, err = transfer.Export(w.Context(), lease, 0)
		w.want("a lease that has ended", err, locker.ErrUnlocked)
		w.store.Up()
		if err := lease.Unlock(w.Context()); err != nil || w.held() != 0 {
			w.Error("Unlock", err)
		}
		lease = w.lock(w.old, locker.NoRenewal(), locker.TTL(time.Second))
		time.Sleep(time.Second)
		_, err = transfer.Export(w.Context(), lease, 0)
		w.want("a lease that is lost", err, locker.ErrLost)
		gone, cancel := context.WithCancel(w.Context())
		cancel()
		text, err := transfer.Export(gone, w.lock(w.old), 0)
		w.want("a context that has ended", err, nil)
		_, err = transfer.Resume(gone, w.new, text)
		w.want("Resume with such a context", err, context.Canceled)
		_ = w.resume(w.new, text).Unlock(w.Context())
	})
}

// The validity counts from the request, so an answer that comes late makes no lease, and the lock is released.
func TestResumeThatComesTooLateIsUndone(t *testing.T) {
	run(t, func(w *world) {
		text := w.export(w.lock(w.old), time.Minute)
		w.store.Delay(2 * time.Second)
		_, err := transfer.Resume(w.Context(), w.new, text, locker.TTL(time.Second))
		w.want("Resume", err, locker.ErrUnavailable)
		w.store.Delay(0)
		synctest.Wait()
		if w.held() != 0 {
			w.Error("the lock is still taken")
		}
	})
}

// forgetful is a middleware that does not pass on the context of its caller.
type forgetful struct{ locker.Locker }

func (f forgetful) TryLock(_ context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := f.Locker.TryLock(context.Background(), key, opts...)
	if err != nil {
		return nil, err
	}
	return forgetfulLease{lease}, nil
}

type forgetfulLease struct{ locker.Lease }

func (f forgetfulLease) Unwrap() locker.Lease         { return f.Lease }
func (f forgetfulLease) Unlock(context.Context) error { return f.Lease.Unlock(context.Background()) }

// A middleware that breaks the rules makes no lease that was not asked for.
func TestMiddlewareThatForgetsTheContext(t *testing.T) {
	run(t, func(w *world) {
		l := forgetful{w.old}
		if text, err := transfer.Export(w.Context(), w.lock(l), 0); err == nil || w.held() != 0 {
			w.Errorf("Export: %v, %v", text, err)
		}
		text := w.export(w.lock(w.old), time.Second)
		_, err := transfer.Resume(w.Context(), l, text)
		w.want("Resume", err, locker.ErrHeld)
		time.Sleep(time.Second)
		if _, err := transfer.Resume(w.Context(), l, text); err == nil || w.held() != 0 {
			w.Error("a free lock was acquired", err)
		}
	})
}

// A lease that is handed over within the process is the one that is passed on, and its tokens stay behind.
func TestLeaseThatWasHandedOver(t *testing.T) {
	run(t, func(w *world) {
		first := w.lock(w.new) // so that both wait, and one grant has tokens for both
		leases := make(chan locker.Lease, 3)
		for range 3 {
			go func() {
				lease, err := w.old.Lock(w.Context(), "k")
				if err != nil {
					w.Error(err)
				}
				leases <- lease
			}()
			synctest.Wait()
		}
		_ = first.Unlock(w.Context())
		a := <-leases
		_ = a.Unlock(w.Context())
		b := <-leases
		if b.Token() != a.Token() {
			w.Fatal("the lock was not handed over")
		}
		_, err := transfer.Export(w.Context(), a, 0)
		w.want("the lease before", err, locker.ErrUnlocked)
		text := w.export(b, 0)
		synctest.Wait()
		if len(leases) > 0 {
			w.Fatal("the next caller has the lock")
		}
		next := w.resume(w.new, text)
		if next.Fence() <= b.Fence() {
			w.Errorf("the token %d comes after %d", next.Fence(), b.Fence())
		}
		_ = next.Unlock(w.Context())
		_ = (<-leases).Unlock(w.Context())
	})
}
