package record_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/recordstore"
	ticks "github.com/golocker/locker/once"
	"github.com/golocker/locker/record"
)

// host is a store as a process of one machine sees it: it reads the clock of that machine.
type host struct {
	*recordstore.Store
	id    string    // empty: this process does not know the clock
	start time.Time // when the clock was 0
}

// Clock implements record.Clock.
func (h host) Clock() (id string, now time.Duration) { return h.id, time.Since(h.start) }

// still is a host with a clock that stands still.
type still struct {
	*recordstore.Store
	id  string
	now time.Duration
}

// Clock implements record.Clock.
func (s still) Clock() (id string, now time.Duration) { return s.id, s.now }

// none stands for a Store that is no record.Clock.
const none = "none"

// machine returns a function that makes processes of one machine, which was started an hour ago.
func machine(t *testing.T, s *recordstore.Store) (process func(clock string) *record.Backend) {
	start := time.Now().Add(-time.Hour)
	return func(clock string) *record.Backend {
		if clock == none {
			return backendOf(t, s)
		}
		return backendOf(t, host{s, clock, start})
	}
}

// Processes that have never seen the record of a holder that has crashed acquire the lock when its time is over on the
// clock of all. If the record is of another clock, or of none, its time counts from the first attempt of one of them.
// Without a clock, they watch.
func TestClock(t *testing.T) {
	const watches = -1
	for name, c := range map[string]struct {
		holder, other string // their clocks
		free          time.Duration
	}{
		"one clock":                         {"a", "a", record.Patience(ttl)},
		"another clock":                     {"a", "b", record.Patience(ttl)},
		"the holder does not know a clock":  {"", "a", record.Patience(ttl)},
		"the other does not know the clock": {"a", "", watches},
		"the holder has no clock":           {none, "a", record.Patience(ttl)},
		"the other has no clock":            {"a", none, watches},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				process, start := machine(t, s), time.Now()
				crashed := acquire(t, process(c.holder), ttl)
				looks := []time.Duration{0, ttl / 2, ttl, record.Patience(ttl) - 1}
				if c.free == watches {
					looks = append(looks, time.Minute, time.Hour)
				}
				for _, d := range looks {
					time.Sleep(time.Until(start.Add(d)))
					wantHeld(t, process(c.other), "after "+d.String())
				}
				last := process(c.other)
				if c.free == watches {
					wantHeld(t, last, "the first look")
					time.Sleep(record.Patience(ttl))
				} else {
					time.Sleep(time.Until(start.Add(c.free)))
				}
				if next := acquire(t, last, ttl); next.Fence <= crashed.Fence {
					t.Errorf("token %d after %d", next.Fence, crashed.Fence)
				}
			})
		})
	}
}

// A volume moves to another machine, which has been up for days, while the first one is cut off and not dead, or comes
// back. No lock of it has two holders, held or kept, and the owner that is still there goes on with its record.
func TestVolumeThatMoves(t *testing.T) {
	for _, keep := range []time.Duration{0, time.Minute} {
		inBubble(t, func(t *testing.T, s *recordstore.Store) {
			first := machine(t, s)("a")
			up := time.Now().Add(-48 * time.Hour)
			moved := func() *record.Backend { return backendOf(t, host{s, "b", up}) }
			req := acquire(t, first, time.Minute)
			if req.Keep = keep; keep > 0 {
				if err := first.Release(t.Context(), req); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(30 * time.Second)
			wantHeld(t, moved(), "after the move")
			if keep == 0 {
				time.Sleep(20 * time.Second)
				if err := first.Extend(t.Context(), req); err != nil {
					t.Errorf("the owner: %v", err)
				}
				wantHeld(t, moved(), "after a renewal")
			}
			time.Sleep(record.Patience(time.Minute) - 1)
			wantHeld(t, moved(), "at the end")
			time.Sleep(time.Nanosecond)
			acquire(t, moved(), ttl)
			if err := first.Extend(t.Context(), req); !errors.Is(err, locker.ErrNotHeld) {
				t.Errorf("the former owner: %v", err)
			}
		})
	}
}

// A tick is not run again if the machine is restarted after the job, within the window.
func TestTickOverARestart(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		tick, runs := time.Now(), 0
		run := func(clock string, up time.Duration) {
			l := record.New(host{s, clock, time.Now().Add(-up)})
			defer l.Close()
			job := func(context.Context) error { runs++; return nil }
			if _, err := ticks.Do(t.Context(), l, "report", tick, job); err != nil {
				t.Errorf("on %s: %v", clock, err)
			}
		}
		run("a", time.Hour)
		time.Sleep(20 * time.Second)
		run("b", 10*time.Second)
		if runs != 1 {
			t.Errorf("the tick was run %d times", runs)
		}
	})
}

// A clock that cannot be in a record is none: its processes watch, and others watch what they write.
func TestClocksThatCannotBeWritten(t *testing.T) {
	for name, c := range map[string]struct {
		id string
		up time.Duration
	}{
		"the bytes of a UUID":      {"\x9c\xea\x2f\x62\x10\xcf\x42\xcb", time.Hour},
		"a long id":                {strings.Repeat("a", 65), time.Hour},
		"before its start":         {"a", -time.Minute},
		"at its start":             {"a", 0},
		"later than a record says": {"a", 140 * 365 * 24 * time.Hour},
		"the end of all times":     {"a", math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				process := func() *record.Backend { return backendOf(t, still{s, c.id, c.up}) }
				good := machine(t, s)
				acquire(t, process(), ttl)
				if text := s.Text("k"); strings.Contains(text, "clock") {
					t.Errorf("the record is %s", text)
				}
				for _, b := range []*record.Backend{process(), good("b")} {
					time.Sleep(time.Minute)
					wantHeld(t, b, "the first look")
					time.Sleep(record.Patience(ttl))
					acquire(t, b, ttl)
				}
				wantHeld(t, process(), "a record with a clock") // of the last one
			})
		})
	}
}

// Each extension moves the end on the clock, and so does what keeps a lock after its release.
func TestClockOfExtensions(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		process := machine(t, s)
		holder := process("a")
		req := acquire(t, holder, ttl)
		for range 5 {
			time.Sleep(ttl * 4 / 5)
			if err := holder.Extend(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(record.Patience(ttl) - 1)
		wantHeld(t, process("a"), "after the last extension")
		time.Sleep(time.Nanosecond)
		holder, req = process("a"), request(ttl)
		g, err := holder.Acquire(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		req.Fence, req.Fences, req.Private, req.Keep = g.Fence, g.Fences, g.Private, time.Minute
		if err := holder.Release(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		time.Sleep(record.Patience(time.Minute) - 1)
		wantHeld(t, process("a"), "a lock that is kept")
		time.Sleep(time.Nanosecond)
		acquire(t, process("a"), ttl)
	})
}

// A process that knows no clock leaves the record of one that does as it is: the others would have to watch it.
func TestProcessWithoutAClockWritesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		process := machine(t, s)
		acquire(t, process("a"), ttl)
		text := s.Text("k")
		for _, clock := range []string{none, ""} {
			wantHeld(t, process(clock), "a process that knows no clock")
		}
		if s.Text("k") != text {
			t.Errorf("the record was %s, and is %s", text, s.Text("k"))
		}
	})
}

// The machine was restored from a snapshot, beside its disk, and its clock has gone back. Watching bounds what that
// costs.
func TestClockThatHasGoneBack(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		process := machine(t, s)
		acquire(t, process("a"), ttl)
		b := backendOf(t, host{s, "a", time.Now().Add(-time.Minute)})
		wantHeld(t, b, "the first look")
		i, err := b.Inspect(t.Context(), "k")
		if err != nil || i.Remaining != ttl {
			t.Errorf("%v remain, %v; want %v", i.Remaining, err, ttl)
		}
		time.Sleep(record.Patience(ttl) - 1)
		wantHeld(t, b, "at the end")
		time.Sleep(time.Nanosecond)
		acquire(t, b, ttl)
	})
}

// stepped is a host whose clock is set.
type stepped struct {
	*recordstore.Store
	start *time.Time
}

// Clock implements record.Clock.
func (s stepped) Clock() (id string, now time.Duration) { return "a", time.Since(*s.start) }

// An attempt has written over a lock whose time was over, and it is not known whether that took effect. The lock is
// not held again for it because the clock has gone back.
func TestClockThatGoesBackDuringAnAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		start := time.Now().Add(-time.Hour)
		crashed := acquire(t, backendOf(t, host{s, "a", start}), ttl)
		time.Sleep(record.Patience(ttl))
		doubted := false
		s.Inject(func(r recordstore.Request) (f recordstore.Fault) {
			if r.Op == "replace" && !doubted {
				start, doubted, f.Doubted = start.Add(ttl), true, true
			}
			return f
		})
		if next := acquire(t, backendOf(t, stepped{s, &start}), ttl); next.Fence <= crashed.Fence {
			t.Errorf("token %d after %d", next.Fence, crashed.Fence)
		}
	})
}

// With a clock, a process that looks for the first time knows since when and for how long a lock is held.
func TestInspectionByTheClock(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		process := machine(t, s)
		holder := process("a")
		req := acquire(t, holder, ttl)
		time.Sleep(ttl / 5)
		if err := holder.Extend(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl * 2 / 5)
		i, err := process("a").Inspect(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		left := record.Patience(ttl) - ttl*2/5
		if i.State != inspect.Held || i.Held != ttl*3/5 || i.Remaining != left {
			t.Errorf("%v for %v, and for %v more; want it held for %v, and for %v", i.State, i.Held, i.Remaining, ttl*3/5, left)
		}
	})
}
