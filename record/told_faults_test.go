package record_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/record"
)

// stale answers one read with what was there before, if it is told to.
type stale struct {
	service
	text    []byte
	version string
	next    bool
}

func (s *stale) Get(ctx context.Context, name string) ([]byte, string, error) {
	text, version, err := s.service.Get(ctx, name)
	if s.next {
		s.next = false
		return s.text, s.version, err
	}
	s.text, s.version = text, version
	return text, version, err
}

// A waiter is told that the time of a lock is over, and its write is answered with a conflict that proves nothing. Then
// a machine answers whose clock is behind. The waiter must not wait on with a token that may be undone later.
func TestWaiterInDoubtIsToldAnEarlierTime(t *testing.T) {
	for _, old := range []bool{false, true} {
		inBubble(t, func(t *testing.T, s *recordstore.Store) {
			ahead := time.Duration(0)
			store := &stale{service: service{s, func() time.Duration { return ahead }, nil}}
			acquire(t, backendOf(t, store), 10*time.Second) // and it crashes
			time.Sleep(13 * time.Second)
			ahead = skew
			first, down := true, true
			s.Inject(func(r recordstore.Request) (f recordstore.Fault) {
				switch undo := r.Op == "replace" && strings.Contains(r.Text, `"state":"free"`); {
				case undo:
					f.Refused = down
				case r.Op == "replace" && first && old:
					first, ahead, store.next = false, 0, true
					f.Twice = true
				case r.Op == "replace" && first:
					first, ahead = false, 0
					f.Doubted = true
				}
				return f
			})
			lease, err := client(t, store).Lock(t.Context(), "k", locker.TTL(time.Minute), locker.NoRenewal())
			if err != nil {
				t.Fatal(err)
			}
			down = false
			time.Sleep(20 * time.Second)
			if other, err := client(t, store).TryLock(t.Context(), "k"); err == nil && lease.Err() == nil {
				t.Errorf("old reads: %v: two holders: %d and %d", old, lease.Fence(), other.Fence())
			}
		})
	}
}

// The holder's clock is slow, and it has heard nothing of the store for hours: MinHold lasts nevertheless, whether an
// answer is lost or what mends the end.
func TestMinHoldOfAHolderWhoseTimeIsBehind(t *testing.T) {
	for name, lost := range map[string]int{"nothing is lost": 0, "the first": 1, "the second": 2} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				ahead := time.Duration(0)
				store := service{s, func() time.Duration { return ahead }, nil}
				h := backendOf(t, store)
				req := acquire(t, h, 9*time.Hour)
				time.Sleep(8 * time.Hour)
				ahead = 10 * time.Minute // more than 1 % of it
				req.Keep = 4 * time.Minute
				writes := 0
				s.Inject(func(r recordstore.Request) (f recordstore.Fault) {
					if r.Op == "replace" {
						writes++
						f.Lost = writes == lost && lost == 1
						f.Refused = writes == lost && lost == 2
					}
					return f
				})
				if err := h.Release(t.Context(), req); err != nil && (lost == 0 || !errors.Is(err, locker.ErrUnavailable)) {
					t.Error(err)
				}
				time.Sleep(3 * time.Second) // it is repeated in the background
				if _, err := try(t, backendOf(t, store), ttl); !errors.Is(err, locker.ErrHeld) {
					t.Errorf("within MinHold: %v", err)
				}
				time.Sleep(5 * time.Minute)
				if _, err := try(t, backendOf(t, store), ttl); err != nil {
					t.Errorf("after it: %v", err)
				}
			})
		})
	}
}

// Between its two writes, nobody takes a lock that is kept by a holder whose clock is within 1 %.
func TestMinHoldLastsFromTheFirstWrite(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		ahead := time.Duration(0)
		store := service{s, func() time.Duration { return ahead }, nil}
		h := backendOf(t, store)
		req := acquire(t, h, 9*time.Hour)
		time.Sleep(8 * time.Hour)
		ahead = 8 * time.Hour / 100
		req.Keep = 4 * time.Minute
		writes := 0
		s.Inject(func(r recordstore.Request) (f recordstore.Fault) {
			if r.Op == "replace" {
				writes++
				f.Lost, f.Refused = writes == 1, writes > 1
			}
			return f
		})
		_ = h.Release(t.Context(), req)
		if _, err := try(t, backendOf(t, store), ttl); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("within MinHold: %v", err)
		}
	})
}

// The holder believes a time that is behind, and a machine answers that is ahead by the skew. Its clock may be at the
// end of a second that it tells, and run 1 % too fast.
func TestServerClockOfAWrongBelief(t *testing.T) {
	for _, c := range []struct {
		lasts, phase time.Duration
		fast         time.Duration // in a second
	}{
		{20 * time.Second, 0, 0},
		{19790 * time.Millisecond, 990 * time.Millisecond, 0}, // the end needs no rounding
		{500 * time.Second, 0, 9900 * time.Microsecond},
	} {
		for wrong := time.Duration(0); wrong <= 8*time.Second; wrong += 500 * time.Millisecond {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				time.Sleep(c.phase)
				ahead, start := time.Duration(0), time.Now()
				store := service{s, func() time.Duration {
					return ahead + time.Duration(time.Since(start).Seconds()*float64(c.fast))
				}, nil}
				h := backendOf(t, store)
				release(t, h, acquire(t, h, ttl))
				ahead = wrong
				acquire(t, h, c.lasts)
				ahead = wrong + skew
				time.Sleep(c.lasts - 10*time.Millisecond)
				wantHeld(t, backendOf(t, store), fmt.Sprint(c, wrong))
			})
		}
	}
}

// An extension to less, whose answer is lost, while the holder believes an earlier time: what was promised lasts.
func TestServerClockOfAShorterExtension(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		ahead := time.Duration(0)
		store := service{s, func() time.Duration { return ahead }, nil}
		h := backendOf(t, store)
		req := acquire(t, h, 5*time.Minute)
		time.Sleep(2 * time.Minute)
		ahead = -time.Hour
		_, _ = h.Acquire(t.Context(), request(ttl)) // the answer is believed
		ahead = 0
		s.LoseReply()
		req.TTL = time.Second
		if err := h.Extend(t.Context(), req); !errors.Is(err, locker.ErrUnavailable) {
			t.Fatal(err)
		}
		wantHeld(t, backendOf(t, store), "before the end of what was promised")
	})
}

// The success of an extension is reported as a conflict, and its end is too early.
func TestServerClockOfAnExtensionInDoubt(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		ahead := time.Duration(0)
		store := service{s, func() time.Duration { return ahead }, nil}
		h := backendOf(t, store)
		req := acquire(t, h, 100*time.Second)
		time.Sleep(90 * time.Second)
		ahead = -time.Hour
		_, _ = h.Acquire(t.Context(), request(ttl))
		ahead = 0
		s.Inject(once(recordstore.Fault{Twice: true}))
		req.TTL = 5 * time.Minute
		if err := h.Extend(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Minute)
		wantHeld(t, backendOf(t, store), "extended")
	})
}

// A skew without measure is as good as none: locks are watched.
func TestHugeSkew(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		store := service{s, func() time.Duration { return 0 }, nil}
		acquire(t, backendOf(t, store, record.ClockSkew(math.MaxInt64)), 10*time.Second)
		other := backendOf(t, store)
		wantHeld(t, other, "at once")
		time.Sleep(11 * time.Second)
		if _, err := try(t, other, ttl); err != nil {
			t.Errorf("after it was watched: %v", err)
		}
	})
}

// calledUTC is a clock of a machine that has the id of the clock of services.
type calledUTC struct{ *recordstore.Store }

func (calledUTC) Clock() (string, time.Duration) { return "utc", time.Hour }

func TestClockOfAReservedName(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		acquire(t, backendOf(t, calledUTC{s}), 10*time.Second)
		if n := s.Requests(); n["create"]+n["replace"] > 1 {
			t.Errorf("%v", n)
		}
		if strings.Contains(s.Text("k"), "utc") {
			t.Errorf("%s", s.Text("k"))
		}
	})
}
