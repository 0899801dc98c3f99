package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/lockertest"
	"github.com/golocker/locker/middleware/retry"
	"github.com/golocker/locker/transfer"
)

var errLost = fmt.Errorf("%w: the answer was lost", locker.ErrUnavailable)

// lossy executes an Export, or loses it, and answers nothing.
type lossy struct {
	ofPlaces
	answers []string // what becomes of the next exports: "lost" on the way there, or "silent" afterwards
	late    func() error
}

func (l *lossy) Export(ctx context.Context, req backend.Request, to string) error {
	fate := ""
	if len(l.answers) > 0 {
		fate, l.answers = l.answers[0], l.answers[1:]
	}
	export := func() error { return l.ofPlaces.Export(context.WithoutCancel(ctx), req, to) }
	switch fate {
	case "lost":
		l.late = export
		return errLost
	case "silent":
		_ = export()
		return errLost
	}
	return export()
}

// Unlock undoes an Export in doubt, and two at once, whether the store has executed them, or executes one later.
func TestExportInDoubtIsUndoneByUnlock(t *testing.T) {
	for _, fates := range [][]string{
		{"silent"}, {"lost"}, {"silent", "silent"}, {"lost", "silent"}, {"silent", "", "silent"},
	} {
		t.Run(fmt.Sprint(fates), func(t *testing.T) {
			run(t, func(w *world) {
				b := &lossy{ofPlaces: ofPlaces{w.store}, answers: fates}
				c := locker.NewClient(b)
				defer c.Close()
				lease := w.lock(c)
				var others sync.WaitGroup
				if len(fates) > 1 {
					others.Go(func() {
						_, err := transfer.Export(w.Context(), late(lease), 12*time.Hour)
						w.want("another Export", err, locker.ErrUnavailable)
					})
					synctest.Wait()
				}
				text, err := transfer.Export(w.Context(), lease, 12*time.Hour)
				w.want("Export", err, locker.ErrUnavailable)
				if text != (transfer.Text{}) {
					w.Error("there is a text")
				}
				others.Wait()
				w.want("Unlock", lease.Unlock(w.Context()), nil)
				if left := w.held(); left != 0 {
					w.Errorf("the lock is taken for %v", left)
				}
				w.want("a second Unlock", lease.Unlock(w.Context()), locker.ErrUnlocked)
				next := w.lock(w.new)
				if b.late != nil {
					w.want("Export that comes late", b.late(), locker.ErrNotHeld)
				}
				w.want("the next lease", next.Unlock(w.Context()), nil)
			})
		})
	}
}

// late returns lease behind a middleware that unlocks it a second later.
func late(lease locker.Lease) locker.Lease {
	return with{lease, func() { time.Sleep(time.Second) }, func() error { return nil }}
}

// An Export after one in doubt has the lock in its text, whatever became of the first.
func TestExportInDoubtIsRepeated(t *testing.T) {
	for _, fate := range []string{"silent", "lost"} {
		t.Run(fate, func(t *testing.T) {
			run(t, func(w *world) {
				b := &lossy{ofPlaces: ofPlaces{w.store}}
				c := locker.NewClient(b)
				defer c.Close()
				check := func(lease locker.Lease, text transfer.Text) {
					if b.late != nil {
						_ = b.late()
					}
					w.want("Unlock", lease.Unlock(w.Context()), locker.ErrUnlocked)
					w.want("the next lease", w.resume(w.new, text).Unlock(w.Context()), nil)
				}
				b.answers = []string{fate}
				lease := w.lock(locker.Wrap(c, retry.New()))
				check(lease, w.export(lease, time.Hour))

				b.answers = []string{fate}
				lease = w.lock(c)
				text := make(chan transfer.Text)
				go func() { text <- w.export(late(lease), time.Hour) }()
				synctest.Wait()
				_, err := transfer.Export(w.Context(), lease, time.Hour)
				w.want("Export", err, locker.ErrUnavailable)
				check(lease, <-text)
			})
		})
	}
}

// An Export that is executed again long after leaves the end of the lock as it is.
func TestExportThatComesTwiceLeavesTheTime(t *testing.T) {
	run(t, func(w *world) {
		b := &lossy{ofPlaces: ofPlaces{w.store}, answers: []string{"lost"}}
		c := locker.NewClient(b)
		defer c.Close()
		text := w.export(w.lock(locker.Wrap(c, retry.New())), time.Minute)
		left := w.held()
		time.Sleep(50 * time.Second)
		w.want("Export that comes late", b.late(), nil)
		if now := w.held(); now != left-50*time.Second {
			w.Errorf("the lock is taken for %v, and was for %v", now, left)
		}
		w.want("Unlock", w.resume(w.new, text).Unlock(w.Context()), nil)
	})
}

// guarded is a middleware that has a lock of its own for as long as each lease.
type guarded struct {
	locker.Locker
	aux *locker.Client
}

func (g guarded) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	aux, err := g.aux.TryLock(ctx, "quota", opts...)
	if err != nil {
		return nil, err
	}
	lease, err := g.Locker.TryLock(ctx, key, opts...)
	if err != nil {
		return nil, errors.Join(err, aux.Unlock(ctx))
	}
	return guardedLease{lease, aux}, nil
}

// guardedLease unlocks the lock of the middleware first, so that it cannot be mistaken for the one that is exported.
type guardedLease struct {
	locker.Lease
	aux locker.Lease
}

func (g guardedLease) Unwrap() locker.Lease { return g.Lease }

func (g guardedLease) Unlock(ctx context.Context) error {
	return errors.Join(g.aux.Unlock(ctx), g.Lease.Unlock(ctx))
}

// What else a middleware unlocks with the context of its caller is not exported, also if it has the same key.
func TestOtherLocksOfAMiddlewareAreUnlocked(t *testing.T) {
	run(t, func(w *world) {
		other := lockertest.NewStore()
		for what, aux := range map[string]*locker.Client{"other": locker.NewClient(other), "same": w.old} {
			l := guarded{w.old, aux}
			text := w.export(w.lock(l), time.Hour)
			if i, err := aux.Inspect(w.Context(), "quota"); err != nil || i.State != inspect.Free {
				w.Errorf("%s store: the lock of the middleware is taken for %v, %v", what, i.Remaining, err)
			}
			w.want("Unlock", w.resume(l, text).Unlock(w.Context()), nil)
			if what == "other" {
				_ = aux.Close()
			}
		}
	})
}

// with is a lease whose middleware does something before or after Unlock.
type with struct {
	locker.Lease
	before func()
	after  func() error
}

func (m with) Unwrap() locker.Lease { return m.Lease }

func (m with) Unlock(ctx context.Context) error {
	m.before()
	return errors.Join(m.Lease.Unlock(ctx), m.after())
}

// A text that the store has made is returned, whatever a middleware has to complain about.
func TestTextComesWithTheErrorOfAMiddleware(t *testing.T) {
	run(t, func(w *world) {
		trouble := errors.New("my own trouble")
		lease := with{w.lock(w.old), func() {}, func() error { return trouble }}
		text, err := transfer.Export(w.Context(), lease, time.Hour)
		w.want("Export", err, trouble)
		w.want("Unlock", w.resume(w.new, text).Unlock(w.Context()), nil)
	})
}

// A lease that is lost while middleware still works is not passed on.
func TestLeaseThatIsLostMeanwhileIsNotExported(t *testing.T) {
	run(t, func(w *world) {
		lease := with{
			w.lock(w.old, locker.MaxHold(5*time.Second)),
			func() { time.Sleep(10 * time.Second) }, func() error { return nil },
		}
		text, err := transfer.Export(w.Context(), lease, time.Hour)
		w.want("Export", err, locker.ErrLost)
		if text != (transfer.Text{}) {
			w.Error("there is a text")
		}
		if left := w.held(); left > time.Minute {
			w.Errorf("the lock is taken for %v", left)
		}
		w.want("Unlock", lease.Lease.Unlock(w.Context()), nil)
		if w.held() != 0 {
			w.Error("the lock is still taken")
		}
	})
}

// A text whose resumption was under way when the Client began to drain is used up, and the error says so.
func TestDrainDuringResumeUsesTheTextUp(t *testing.T) {
	run(t, func(w *world) {
		text := w.export(w.lock(w.old), time.Minute)
		w.store.Delay(time.Second)
		failed := make(chan error)
		go func() {
			_, err := transfer.Resume(w.Context(), w.old, text)
			failed <- err
		}()
		synctest.Wait()
		gone, cancel := context.WithCancel(w.Context())
		cancel()
		w.old.Drain(gone)
		w.want("Resume", <-failed, locker.ErrDraining, locker.ErrUnavailable)
		w.store.Delay(0)
		synctest.Wait()
		_, err := transfer.Resume(w.Context(), w.old, text)
		w.want("Resume that was not sent", err, locker.ErrDraining)
		if errors.Is(err, locker.ErrUnavailable) || w.held() != 0 {
			w.Error(err, w.held())
		}
		_, err = transfer.Resume(w.Context(), w.new, text)
		w.want("the text", err, transfer.ErrEnded)
	})
}
