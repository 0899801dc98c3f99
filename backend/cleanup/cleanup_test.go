package cleanup

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/internal/testing/virtual"
)

// store answers after a millisecond, unless it is down. Then it hangs, or refuses.
type store struct {
	mu          sync.Mutex
	down, hangs bool
	calls       int // since the last reset
	now, most   int // in progress: now, and at most
	answered    int
}

var errDown = errors.New("down")

func (s *store) set(down, hangs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down, s.hangs = down, hangs
}

// reset returns how many calls there were, and how many at once, since it was called last.
func (s *store) reset() (calls, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, most = s.calls, s.most
	s.calls, s.most = 0, s.now
	return calls, most
}

func (s *store) done() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered
}

func (s *store) request(ctx context.Context) error {
	s.mu.Lock()
	s.calls++
	s.now++
	s.most = max(s.most, s.now)
	down, hangs := s.down, s.hangs
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.now--
	}()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	time.Sleep(time.Millisecond)
	if down {
		return errDown
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered++
	return nil
}

// bubble runs f in virtual time, and closes the queue after it.
func bubble(t *testing.T, f func(t *testing.T, q *Queue, s *store)) {
	virtual.Test(t, func(t *testing.T) {
		q := new(Queue)
		defer q.Close(0)
		f(t, q, new(store))
	})
}

// in returns the time after d.
func in(d time.Duration) time.Time { return time.Now().Add(d) }

// idle reports whether the queue has no chore and no goroutine.
func idle(q *Queue) bool {
	synctest.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.workers == 0 && len(q.fresh)+len(q.failed) == 0 && !q.probing
}

func TestChoreIsRepeatedUntilItSucceeds(t *testing.T) {
	bubble(t, func(t *testing.T, q *Queue, s *store) {
		s.set(true, false)
		q.Repeat(in(time.Hour), s.request)
		time.Sleep(30 * time.Second)
		if calls, _ := s.reset(); calls < 30 || calls > 75 {
			t.Errorf("%d calls in 30 s, expected one or two a second", calls)
		}
		s.set(false, false)
		time.Sleep(2 * time.Second)
		if calls, _ := s.reset(); calls != 1 || !idle(q) {
			t.Errorf("%d calls after the store was back, expected 1, and then nothing that goes on", calls)
		}
	})
}

// A chore that nobody needs any more is not called, and its context ends when nobody needs it.
func TestChoreEndsWithItsTime(t *testing.T) {
	for name, hangs := range map[string]bool{"the store refuses": false, "the store hangs": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, q *Queue, s *store) {
				s.set(true, hangs)
				end := in(10*time.Second + defaultTimeout/2)
				q.Repeat(end, func(ctx context.Context) error {
					if deadline, _ := ctx.Deadline(); deadline.After(end) || time.Until(deadline) > defaultTimeout {
						t.Errorf("the context ends after %v", time.Until(deadline))
					}
					return s.request(ctx)
				})
				q.Repeat(time.Now(), func(context.Context) error {
					t.Error("a chore whose time is over was called")
					return nil
				})
				time.Sleep(time.Until(end))
				if calls, _ := s.reset(); calls < 3 {
					t.Errorf("%d calls, expected more", calls)
				}
				time.Sleep(time.Hour)
				if calls, _ := s.reset(); calls > 0 || !idle(q) {
					t.Errorf("%d calls after the end", calls)
				}
			})
		})
	}
}

func TestTimeoutBoundsACall(t *testing.T) {
	bubble(t, func(t *testing.T, q *Queue, s *store) {
		q.Timeout = time.Second
		s.set(true, true)
		q.Repeat(in(time.Hour), s.request)
		time.Sleep(time.Second + time.Millisecond)
		s.set(false, false)
		time.Sleep(minPause + time.Millisecond)
		if s.done() != 1 {
			t.Error("a call was not ended by the Timeout, or not repeated")
		}
	})
}

// However many chores there are, a store that is down for an hour is asked by one of them at a time, about once a
// second, and each time by another one. That is so when all have been called once.
func TestOneChoreProbesAStoreThatIsDown(t *testing.T) {
	for name, hangs := range map[string]bool{"it refuses": false, "it hangs": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, q *Queue, s *store) {
				s.set(true, hangs)
				probed := make([]int, 100)
				for i := range probed {
					q.Repeat(in(24*time.Hour), func(ctx context.Context) error {
						probed[i]++
						return s.request(ctx)
					})
				}
				synctest.Wait()
				if _, most := s.reset(); most > maxWorkers {
					t.Errorf("%d calls at once", most)
				}
				time.Sleep(2 * defaultTimeout)
				s.reset()
				time.Sleep(time.Minute)
				if _, most := s.reset(); most > 2 {
					t.Errorf("%d calls at once, of a store that is down", most)
				}
				time.Sleep(10 * time.Minute)
				s.reset()
				time.Sleep(time.Hour)
				calls, most := s.reset()
				if calls < 500 || calls > 2*3600 || most != 1 {
					t.Errorf("%d calls in an hour, %d at once", calls, most)
				}
				for _, n := range probed {
					if n > 100 {
						t.Fatalf("one chore was called %d times, and others were not", n)
					}
				}
			})
		})
	}
}

// After 40 s in which 400 callers have tried to lock, nothing is left for long.
func TestOutageLeavesNothingForLong(t *testing.T) {
	for name, ttl := range map[string]time.Duration{"most chores are over": 10 * time.Second, "none is": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, q *Queue, s *store) {
				s.set(true, true)
				for range 40 {
					for range 400 {
						q.Repeat(in(ttl), s.request)
					}
					time.Sleep(time.Second)
				}
				s.reset()
				s.set(false, false)
				healed, fresh := time.Now(), make(chan struct{})
				q.Repeat(in(time.Hour), func(context.Context) error {
					close(fresh)
					return nil
				})
				<-fresh
				if took := time.Since(healed); took > defaultTimeout {
					t.Errorf("a new chore has waited %v", took)
				}
				time.Sleep(time.Until(healed.Add(defaultTimeout + maxPause + 2*time.Second)))
				if !idle(q) {
					t.Error("chores are left")
				}
				if calls, _ := s.reset(); ttl < time.Minute && calls > int(ttl/time.Second)*400 {
					t.Errorf("%d calls, of chores whose time is over too", calls)
				}
			})
		})
	}
}

// Chores may fail for reasons of their own, as those of one part of a store.
func TestChoresThatFailDoNotHoldUpNewOnes(t *testing.T) {
	for name, hangs := range map[string]bool{"they are refused": false, "they hang": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, q *Queue, s *store) {
				s.set(true, hangs)
				for range 200 {
					q.Repeat(in(time.Hour), s.request)
				}
				time.Sleep(30 * time.Minute) // each was called
				for range 100 {
					time.Sleep(time.Second)
					added, done := time.Now(), make(chan struct{})
					for range 3 {
						q.Repeat(in(time.Hour), func(context.Context) error {
							done <- struct{}{}
							return nil
						})
					}
					for range 3 {
						<-done
					}
					if took := time.Since(added); took > minPause {
						t.Fatalf("a new chore has waited %v", took)
					}
				}
			})
		})
	}
}

// The newest chore is called first, because the oldest ends soonest by itself.
func TestNewestChoreComesFirst(t *testing.T) {
	bubble(t, func(t *testing.T, q *Queue, s *store) {
		goOn := make(chan struct{})
		for range maxWorkers {
			q.Repeat(in(time.Hour), func(context.Context) error {
				<-goOn
				return nil
			})
		}
		synctest.Wait()
		var order []int
		for i := range 10 {
			q.Repeat(in(time.Hour), func(context.Context) error {
				order = append(order, i)
				return nil
			})
		}
		goOn <- struct{}{} // one worker goes on
		synctest.Wait()
		close(goOn)
		if slices.Reverse(order); len(order) != 10 || !slices.IsSorted(order) {
			t.Errorf("called in the order %d, backwards", order)
		}
	})
}

func TestBacklogIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, q *Queue, s *store) {
		s.set(true, true)
		for range maxWorkers + maxChores/2 {
			q.Repeat(in(time.Minute), s.request)
			q.Repeat(in(time.Hour), s.request)
		}
		time.Sleep(30 * time.Second)
		if q.Backlog() == nil {
			t.Errorf("no backlog with %d chores", maxChores)
		}
		for range 2 * maxChores {
			q.Repeat(in(time.Minute), s.request)
		}
		q.mu.Lock()
		if n := len(q.fresh) + len(q.failed); n != 2*maxChores {
			t.Errorf("%d chores wait", n)
		}
		q.mu.Unlock()
		time.Sleep(time.Minute + defaultTimeout + maxPause)
		if err := q.Backlog(); err != nil {
			t.Errorf("chores whose time is over take room: %v", err)
		}
	})
}

// Close calls each chore once more, at once, and forgets those that fail.
func TestCloseCallsEachChoreOnceMore(t *testing.T) {
	for name, down := range map[string]bool{"the store is down": true, "it is not": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, q *Queue, s *store) {
				s.set(true, false)
				const n = 50
				for range n {
					q.Repeat(in(time.Hour), s.request)
				}
				time.Sleep(time.Minute)
				s.reset()
				s.set(down, false)
				began := time.Now()
				q.Close(time.Second)
				if calls, _ := s.reset(); calls != n || time.Since(began) > 100*time.Millisecond || !idle(q) {
					t.Errorf("%d calls in %v, expected %d", calls, time.Since(began), n)
				}
				q.Close(time.Second)
				q.Repeat(in(time.Hour), s.request)
				if calls, _ := s.reset(); calls > 0 || !idle(q) {
					t.Error("a chore is called after Close")
				}
			})
		})
	}
}

func TestCloseIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, q *Queue, s *store) {
		s.set(true, true)
		for range 1000 {
			q.Repeat(in(time.Hour), s.request)
		}
		time.Sleep(time.Minute)
		began := time.Now()
		q.Close(250 * time.Millisecond)
		if took := time.Since(began); took != 250*time.Millisecond || !idle(q) {
			t.Errorf("Close took %v, and calls go on: %v", took, !idle(q))
		}
	})
}

// A call that was in progress when Close began may have failed because of what was closed before. So it is not the
// last one.
func TestCallInProgressIsNotTheLastOne(t *testing.T) {
	bubble(t, func(t *testing.T, q *Queue, s *store) {
		broken := make(chan struct{})
		calls := 0
		q.Repeat(in(time.Hour), func(ctx context.Context) error {
			if calls++; calls == 1 {
				<-broken
				return errDown
			}
			return s.request(ctx)
		})
		time.AfterFunc(time.Second, func() { close(broken) })
		synctest.Wait()
		q.Close(time.Minute)
		if calls != 2 || s.done() != 1 {
			t.Errorf("%d calls", calls)
		}
	})
}

// What comes to light while Close waits is cleaned up, too.
func TestChoreThatComesWhileCloseWaits(t *testing.T) {
	bubble(t, func(t *testing.T, q *Queue, s *store) {
		q.Repeat(in(time.Hour), func(ctx context.Context) error {
			time.Sleep(time.Second)
			q.Repeat(in(time.Hour), s.request)
			return nil
		})
		synctest.Wait()
		q.Close(time.Minute)
		if s.done() != 1 {
			t.Error("a chore that came while Close waited was forgotten")
		}
	})
}
