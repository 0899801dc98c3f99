package single_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/wire"
	"github.com/golocker/locker/single"
)

// twice is a driver that sends each release twice and returns the second answer, as a proxy does that has lost the
// first.
type twice struct{ drivers.Driver }

func (d twice) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	replies, err := d.Driver.Do(ctx, cmds...)
	if !wire.Releases(cmds[0]) || err != nil {
		return replies, err
	}
	if _, refused := replies[0].(drivers.ServerError); refused {
		return replies, err
	}
	return d.Driver.Do(ctx, cmds...)
}

func TestAReleaseThatIsSentAgainIsNoLoss(t *testing.T) {
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		c := single.New(twice{build(t, s.Addr())})
		for _, opts := range [][]locker.Option{{locker.TTL(time.Minute)},
			{locker.TTL(time.Minute), locker.MinHold(time.Minute)}} {
			l := mustTry(t, c, opts...)
			if err := l.Unlock(t.Context()); errors.Is(err, locker.ErrNotHeld) || !errors.Is(err, locker.ErrUnavailable) {
				t.Errorf("%v, want that it is not known", err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// What is said of a lock that is not a lease's any more is what the server knows, in Extend and in Unlock.
func TestTheServerSaysWhatBecameOfALock(t *testing.T) {
	other := func(t *testing.T, s *redistest.Server, _ *locker.Client) {
		s.Cmd(t, "SET", "lock:k", "other", "PX", 60000)
	}
	deleted := func(t *testing.T, s *redistest.Server, _ *locker.Client) { s.Cmd(t, "DEL", "lock:k") }
	newer := func(t *testing.T, s *redistest.Server, _ *locker.Client) {
		s.Cmd(t, "SETRANGE", "lock:k", 0, "9007199254740000")
	}
	forced := func(t *testing.T, _ *redistest.Server, c *locker.Client) {
		if _, err := c.ForceRelease(t.Context(), "k", ""); err != nil {
			t.Fatal(err)
		}
	}
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		for what, tt := range map[string]struct {
			happens          func(*testing.T, *redistest.Server, *locker.Client)
			extend, unlocked locker.LostReason // "": not known
		}{
			"deleted":           {deleted, locker.LostGone, ""},
			"another owner's":   {other, locker.LostTakenOver, locker.LostTakenOver},
			"a newer token":     {newer, locker.LostSuperseded, locker.LostSuperseded},
			"released by force": {forced, locker.LostGone, locker.LostTakenOver},
		} {
			c := single.New(build(t, s.Addr()))
			l := mustTry(t, c, locker.TTL(time.Minute), locker.NoRenewal())
			tt.happens(t, s, c)
			if err := l.Extend(t.Context()); !errors.Is(err, locker.ErrLost) {
				t.Errorf("%s: Extend: %v", what, err)
			}
			lostBecause(t, l.Err(), tt.extend)
			s.Cmd(t, "FLUSHALL")

			l = mustTry(t, c, locker.TTL(time.Minute), locker.NoRenewal())
			tt.happens(t, s, c)
			err := l.Unlock(t.Context())
			if tt.unlocked == "" {
				if !errors.Is(err, locker.ErrUnavailable) || errors.Is(err, locker.ErrNotHeld) {
					t.Errorf("%s: Unlock: %v", what, err)
				}
			} else {
				lostBecause(t, err, tt.unlocked)
			}
			s.Cmd(t, "FLUSHALL")
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
