package record_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/record"
)

// share is what a process has got of a lock.
type share struct {
	got     int
	longest time.Duration // that it has waited
}

// contended is so long that the turns, which are of random lengths, average out.
const contended = 10 * time.Minute

// contend has processes take a lock again and again until total has passed, and hold it for hold each time.
func contend(t *testing.T, processes int, hold, total time.Duration, open func() record.Store) []share {
	shares := make([]share, processes)
	var wg sync.WaitGroup
	for i := range shares {
		l, s := client(t, open()), &shares[i]
		wg.Go(func() {
			for start := time.Now(); time.Since(start) < total; {
				asked := time.Now()
				err := locker.Do(t.Context(), l, "k", func(context.Context) error {
					s.longest = max(s.longest, time.Since(asked))
					time.Sleep(hold)
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
				s.got++
			}
		})
	}
	wg.Wait()
	return shares
}

// Processes that take a lock again as soon as they have released it get it about as often as each other. Alone, they
// lose nothing but a look for a sign in a pause.
func TestTurns(t *testing.T) {
	for _, c := range []struct {
		processes int
		hold      time.Duration
		looks     int // of each of them in a minute, at most
	}{
		{1, 5 * time.Millisecond, 61}, {2, 5 * time.Millisecond, 167}, {3, 5 * time.Millisecond, 200},
		{3, 300 * time.Millisecond, 200},
	} {
		t.Run(fmt.Sprint(c.processes, " processes, ", c.hold), func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				checkTurns(t, s, c.processes, c.hold, func() record.Store { return s })
				if n := s.Requests()["get"]; n > c.looks*c.processes*int(contended/time.Minute) {
					t.Errorf("%d looks", n)
				}
			})
		})
	}
}

func checkTurns(t *testing.T, s *recordstore.Store, processes int, hold time.Duration, open func() record.Store) {
	t.Helper()
	s.Latency = 5 * time.Millisecond
	all, least, most, longest := 0, math.MaxInt, 0, time.Duration(0)
	shares := contend(t, processes, hold, contended, open)
	for _, s := range shares {
		all, least, most, longest = all+s.got, min(least, s.got), max(most, s.got), max(longest, s.longest)
	}
	t.Log(shares, s.Requests())
	whole := int(contended / (hold + 4*s.Latency)) // if there were no pauses
	switch {
	case processes == 1 && all < whole*97/100, all < whole*2/3:
		t.Errorf("%v: expected some %d times", shares, whole)
	case most > 2*least || longest > 15*time.Second:
		t.Errorf("shares are not even: %v", shares)
	}
}

// Those who are told of releases take turns, too.
func TestTurnsOfThoseWhoWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		checkTurns(t, s, 3, 5*time.Millisecond, watched(t, s, nil))
	})
}

// A process whose lock others have wanted once, and do not want any more, waits for nobody.
func TestOldSigns(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		contend(t, 2, 5*time.Millisecond, time.Minute, func() record.Store { return s })
		time.Sleep(time.Minute)
		l, worst := client(t, s), time.Duration(0)
		for range 5000 {
			asked := time.Now()
			if err := locker.Do(t.Context(), l, "k", func(context.Context) error {
				worst = max(worst, time.Since(asked))
				time.Sleep(time.Millisecond)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if worst > 0 {
			t.Errorf("it has waited for %v", worst)
		}
	})
}

// Processes that use a lock for a moment now and then seldom meet there. None of them leaves it to others.
func TestTurnsCostNothingWhereNobodyIsOvertaken(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		s.Latency = 5 * time.Millisecond
		const processes, rounds = 5, 200
		var mu sync.Mutex
		var waited, longest time.Duration
		var wg sync.WaitGroup
		for range processes {
			l := client(t, s)
			wg.Go(func() {
				for range rounds {
					time.Sleep(250*time.Millisecond + rand.N(500*time.Millisecond))
					asked := time.Now()
					if err := locker.Do(t.Context(), l, "k", func(context.Context) error {
						mu.Lock()
						took := time.Since(asked)
						waited, longest = waited+took, max(longest, took)
						mu.Unlock()
						time.Sleep(5 * time.Millisecond)
						return nil
					}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if mean := waited / (processes * rounds); mean > 80*time.Millisecond {
			t.Errorf("they have waited for %v, and %v at most: %v", mean, longest, s.Requests())
		}
	})
}
