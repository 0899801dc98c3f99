package contention

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// Siege lets callers lock some keys again and again, while a test breaks the store. It judges from outside: by what the
// callers were told, and by no answer of the store about its locks.
type Siege struct {
	testing.TB
	Keys []string // each call is for one of them
	// Options returns the options of a call. Nil: there are none.
	Options func() []locker.Option
	// Wait is for how long a call waits until its caller tries another key. Zero: for as long as Lock does.
	Wait time.Duration
	// Hold returns when the caller gives its lock back. Nil: after some milliseconds.
	Hold func(ctx context.Context, lease locker.Lease)
	// Stuck tells more if callers do not go on. Nil: nothing does.
	Stuck func()

	callers sync.WaitGroup
	stops   []context.CancelFunc

	mu       sync.Mutex
	holds    []Hold
	failures []string
}

// Hold is what a caller knew of a lock: it had it at least from one time to the other.
type Hold struct {
	Caller   int // the number of the caller; -1: another one
	Key      string
	Fence    uint64
	From, To time.Time
}

// standstill is how long a store may take to go on after a fault. It takes ten seconds, and minutes if the machine is
// busy.
const standstill = 3 * time.Minute

// Join lets one more caller lock and unlock by l, until End is called.
func (s *Siege) Join(l locker.Locker) {
	ctx, stop := context.WithCancel(context.Background())
	caller := len(s.stops)
	s.stops = append(s.stops, stop)
	s.callers.Go(func() {
		for ctx.Err() == nil {
			if !s.once(ctx, caller, l) {
				Rest(ctx, nil, 20*time.Millisecond)
			}
		}
	})
}

// once locks, holds and unlocks a key, and reports whether it was locked.
func (s *Siege) once(ctx context.Context, caller int, l locker.Locker) bool {
	key, asked := s.Keys[rand.IntN(len(s.Keys))], time.Now()
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if s.Wait > 0 {
		waiting, cancel = context.WithTimeout(ctx, s.Wait)
	}
	var opts []locker.Option
	if s.Options != nil {
		opts = s.Options()
	}
	lease, err := l.Lock(waiting, key, opts...)
	expected := err == nil || waiting.Err() != nil || errors.Is(err, locker.ErrUnavailable) ||
		s.Wait > 0 && errors.Is(err, locker.ErrHeld)
	cancel()
	if !expected {
		s.Errorf("Lock: %v", err)
	}
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failures = append(s.failures, fmt.Sprintf("%s: %s to %s: %v", key, Clock(asked), Clock(time.Now()), err))
		return false
	}
	from := time.Now()
	if s.Hold != nil {
		s.Hold(ctx, lease)
	} else {
		Rest(ctx, lease, 5*time.Millisecond)
	}
	s.Had(Hold{caller, key, lease.Fence(), from, Earlier(time.Now(), lease.Until())})
	_ = locker.Verify(ctx, lease) // an error of it, or of Unlock, which goes on in the background, is about the fault
	_ = lease.Unlock(ctx)
	return true
}

// Clock writes a time so that it can be compared with those in the logs of servers.
func Clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }

// Rest waits for d, for the end of the lease if there is one, or for that of ctx.
func Rest(ctx context.Context, lease locker.Lease, d time.Duration) {
	var lost <-chan struct{}
	if lease != nil {
		lost = lease.Done()
	}
	select {
	case <-time.After(d):
	case <-lost:
	case <-ctx.Done():
	}
}

// Earlier returns the earlier one of two times.
func Earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Had records a lock, also of a caller that did not join.
func (s *Siege) Had(h Hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds = append(s.holds, h)
}

// Until waits until enough returns true, which it is asked of all holds that have ended.
func (s *Siege) Until(what string, enough func(holds []Hold) bool) {
	s.Helper()
	start := time.Now()
	for end := start.Add(standstill); ; <-time.After(10 * time.Millisecond) {
		s.mu.Lock()
		holds, failures := slices.Clone(s.holds), s.failures[max(0, len(s.failures)-10):]
		s.mu.Unlock()
		switch {
		case enough(holds):
			s.Logf("%5.1f s: %s", time.Since(start).Seconds(), what)
			return
		case time.Now().After(end):
			if s.Stuck != nil {
				s.Stuck()
			}
			s.Fatalf("not within %v: %s; there were %d holds, and the last calls that failed were:\n%s", standstill, what,
				len(holds), strings.Join(failures, "\n"))
		}
	}
}

// More waits until there were n more holds.
func (s *Siege) More(n int, what string) {
	s.Helper()
	s.mu.Lock()
	n += len(s.holds)
	s.mu.Unlock()
	s.Until(what, func(holds []Hold) bool { return len(holds) >= n })
}

// Everybody waits until each caller was granted a lock, and gave it back, once more.
func (s *Siege) Everybody(what string) {
	s.Helper()
	now := time.Now()
	s.Until(what, func(holds []Hold) bool {
		served := make(map[int]bool)
		for _, h := range holds {
			if h.Caller >= 0 && h.From.After(now) {
				served[h.Caller] = true
			}
		}
		return len(served) == len(s.stops)
	})
}

// End lets all callers leave.
func (s *Siege) End() {
	for _, stop := range s.stops {
		stop()
	}
	s.callers.Wait()
}

// Failures returns the calls for key that have failed.
func (s *Siege) Failures(key string) (failed []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.failures {
		if strings.HasPrefix(f, key+": ") {
			failed = append(failed, f)
		}
	}
	return failed
}

// Judge returns which locks two callers had at the same time, and which tokens did not grow. Who could never rely on a
// lock, because its answer came too late, has not had it.
func (s *Siege) Judge() (double, backwards []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	holds := slices.DeleteFunc(slices.Clone(s.holds), func(h Hold) bool { return !h.To.After(h.From) })
	slices.SortFunc(holds, func(a, b Hold) int { return a.From.Compare(b.From) })
	last := make(map[string]Hold)
	for _, h := range holds {
		before, ok := last[h.Key]
		if ok && h.From.Before(before.To) {
			double = append(double, fmt.Sprintf("%s: the holder of token %d got the lock %v before the end of token %d",
				h.Key, h.Fence, before.To.Sub(h.From), before.Fence))
		}
		if ok && h.Fence <= before.Fence {
			backwards = append(backwards, fmt.Sprintf("%s: token %d after %d", h.Key, h.Fence, before.Fence))
		}
		if !ok || h.To.After(before.To) {
			h.Fence = max(h.Fence, before.Fence)
			last[h.Key] = h
		}
	}
	s.Logf("%d holds, %d at the same time as another one", len(holds), len(double))
	return double, backwards
}

// Clean ends the siege, and fails the test if the judge has found something.
func (s *Siege) Clean() {
	s.Helper()
	s.End()
	double, backwards := s.Judge()
	for _, wrong := range slices.Concat(double, backwards) {
		s.Error(wrong)
	}
}
