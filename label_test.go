package locker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/memory"
)

func TestHeldErrorText(t *testing.T) {
	for want, e := range map[string]locker.HeldError{
		"held by another owner":                            {},
		"held by another owner for 1 ms unless renewed":    {Remaining: time.Microsecond},
		"held by another owner for 250 ms unless renewed":  {Remaining: 250400 * time.Microsecond},
		"held by another owner for 9.9 s unless renewed":   {Remaining: 9876 * time.Millisecond},
		"held by web-7:4211 for 28 s unless renewed":       {Remaining: 28 * time.Second, Label: "web-7:4211"},
		"held by web-7:4211 for 29 s unless renewed":       {Remaining: 28999 * time.Millisecond, Label: "web-7:4211"},
		"held by web-7:4211 for 1m0s unless renewed":       {Remaining: time.Minute, Label: "web-7:4211"},
		"held by web-7:4211":                               {Label: "web-7:4211"},
		`held by "the nightly job" for 2 s unless renewed`: {Remaining: 2 * time.Second, Label: "the nightly job"},
		`held by "\x1b[2J"`:                                {Label: "\x1b[2J"},
	} {
		if got := e.Error(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if !errors.Is(&e, locker.ErrHeld) {
			t.Errorf("%v does not match ErrHeld", &e)
		}
	}
}

// voting is a store whose refusals say more than a HeldError, as those of Redlock do.
type voting struct{ backend.Backend }

func (v voting) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := v.Backend.Acquire(ctx, req)
	if err != nil {
		err = fmt.Errorf("%w: 3 nodes said so", err)
	}
	return g, err
}

// A caller that waits for a lease of its own Client learns that, whatever it calls. One that waits for somebody else
// with the same label does not.
func TestACallerThatWaitsForItselfIsTold(t *testing.T) {
	const text = "held by this process: held by "
	type call func(ctx context.Context, l locker.Locker) error
	lock := func(ctx context.Context, l locker.Locker) error {
		_, err := l.Lock(ctx, "k")
		return err
	}
	calls := map[string]call{
		"Lock": lock,
		"Lock behind another caller": func(ctx context.Context, l locker.Locker) error {
			go lock(ctx, l)
			synctest.Wait()
			return lock(ctx, l)
		},
		"TryLock": func(ctx context.Context, l locker.Locker) error {
			_, err := l.TryLock(ctx, "k")
			return err
		},
		"LockAll": func(ctx context.Context, l locker.Locker) error {
			_, err := locker.LockAll(ctx, l, []string{"j", "k"})
			return err
		},
		"TryLockAll": func(ctx context.Context, l locker.Locker) error {
			_, err := locker.TryLockAll(ctx, l, []string{"j", "k"})
			return err
		},
		"a nested Do": func(ctx context.Context, l locker.Locker) error {
			return locker.Do(ctx, l, "k", func(context.Context) error { return nil })
		},
	}
	for name, call := range calls {
		for _, polls := range []bool{false, true} {
			virtual.Test(t, func(t *testing.T) {
				var store backend.Backend = memory.NewBackend()
				if polls {
					store = voting{store}
				}
				own, other := locker.NewClient(store), locker.NewClient(store)
				defer other.Close()
				defer own.Close()
				held := mustLock(t, own, "k")
				for l, want := range map[locker.Locker]bool{own: true, other: false} {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					err := call(ctx, l)
					cancel()
					if !errors.Is(err, locker.ErrHeld) || strings.Contains(err.Error(), text) != want {
						t.Errorf("%s, polls %v, by its own Client %v: %v", name, polls, want, err)
					}
				}
				mustUnlock(t, held)
			})
		}
	}
}

// A Client that had the lock before, or has another one, does not say that it has it.
func TestACallerThatWaitsForAnotherIsNotTold(t *testing.T) {
	store := memory.NewBackend()
	a, b := locker.NewClient(store), locker.NewClient(store)
	defer a.Close()
	defer b.Close()
	mustUnlock(t, mustLock(t, a, "k"))
	another, held := mustLock(t, a, "another"), mustLock(t, b, "k")
	if _, err := a.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrHeld) || strings.Contains(err.Error(), "process") {
		t.Error(err)
	}
	mustUnlock(t, another)
	mustUnlock(t, held)
}

// That the caller's own Client has the lock is found out without a look at all that it has: 100,000 locks would take
// milliseconds, with the mutex of the Client.
func TestHowManyLocksAClientHasDoesNotSlowItsRefusals(t *testing.T) {
	c := memory.New()
	defer c.Close()
	mustLock(t, c, "k", locker.TTL(locker.MaxTTL))
	show := locker.HideGrants(c)
	_, err := c.TryLock(t.Context(), "k")
	show()
	if !errors.Is(err, locker.ErrHeld) || !strings.Contains(err.Error(), "held by this process") {
		t.Errorf("without the list of its locks, the Client says: %v", err)
	}
}

// labelOf returns the label of the holder, as a caller that does not wait gets it.
func labelOf(t *testing.T, l locker.Locker) string {
	t.Helper()
	_, err := l.TryLock(t.Context(), "k")
	var held *locker.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("%v, want a HeldError", err)
	}
	return held.Label
}

func TestWhichLabelWins(t *testing.T) {
	c := memory.New()
	defer c.Close()
	defaults := locker.Wrap(c, locker.Defaults(locker.Label("default")))
	host, _ := os.Hostname()
	process := ":" + strconv.Itoa(os.Getpid())
	for _, tt := range []struct {
		l    locker.Locker
		opts []locker.Option
		want string
	}{
		{c, nil, host + process},
		{defaults, nil, "default"},
		{defaults, []locker.Option{locker.Label("of the call")}, "of the call"},
		{defaults, []locker.Option{locker.Label("")}, ""},
		{c, []locker.Option{locker.Label("")}, ""},
	} {
		lease, err := tt.l.Lock(t.Context(), "k", tt.opts...)
		if err != nil {
			t.Fatal(err)
		}
		seen := labelOf(t, c)
		if host, cut := strings.CutSuffix(tt.want, process); cut && len(host) > 40 {
			tt.want = seen // it is shortened; package label tests how
		}
		if seen != tt.want {
			t.Errorf("the label is %q, want %q", seen, tt.want)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Callers of one Client wait behind each other. They hear of the holder, too.
func TestAWaitingCallIsToldTheLabel(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		holder := mustLock(t, c, "k", locker.Label("first"))
		told := make(chan string, 2)
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{
			Waiting: func(w lockertrace.Waiting) { told <- w.Label },
		})
		results := make(chan error, 2)
		for range 2 {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			go func() {
				_, err := c.Lock(ctx, "k", locker.Label("another"))
				results <- err
			}()
			if label := <-told; label != "first" {
				t.Errorf("a waiting call was told the label %q", label)
			}
		}
		for range 2 {
			err := <-results
			wantErr(t, err, locker.ErrHeld, context.DeadlineExceeded)
			if want := "timed out after 1s: held by first for "; !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not contain %q", err, want)
			}
		}
		if err := holder.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
