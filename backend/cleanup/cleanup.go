// Package cleanup is for authors of stores. It repeats what no caller waits for: a release whose answer was lost, or
// the undoing of an attempt whose outcome is unknown.
//
//	type store struct{ chores cleanup.Queue }
//
//	func (s *store) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
//		if err := s.chores.Backlog(); err != nil {
//			return backend.Grant{}, fmt.Errorf("%w: %w", locker.ErrUnavailable, err)
//		}
//		// …
//	}
//
//	func (s *store) Release(ctx context.Context, req backend.Request) error {
//		err := s.release(ctx, req)
//		if errors.Is(err, locker.ErrUnavailable) {
//			s.chores.Repeat(time.Now().Add(req.TTL), func(ctx context.Context) error { return s.release(ctx, req) })
//		}
//		return err
//	}
//
// Close of the store calls that of the Queue, while its servers can still be reached.
package cleanup

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// defaultTimeout bounds one call of a chore, unless the Queue says otherwise.
	defaultTimeout = 5 * time.Second

	// maxWorkers is how many chores are called at once.
	maxWorkers = 16

	// maxChores bounds the memory for chores while the store does not answer.
	maxChores = 16 << 10

	// While the store fails, it is asked again after pauses between these.
	minPause = 20 * time.Millisecond
	maxPause = time.Second
)

// errBacklog says why attempts are refused.
var errBacklog = fmt.Errorf("the store has not answered %d requests that clean up", maxChores)

// Queue has the chores of one store, each of which is called until it succeeds or its time is over. The zero value is
// ready for use. All methods may be called concurrently.
//
//   - At most 16 chores are called at once. The others wait: the newest comes first, because the oldest ends soonest by
//     itself, and those that have failed come last, in turn.
//   - While the store fails, one of those that have failed is called at a time, as a probe, and one new one, each after
//     pauses that grow from 20 ms to a second. The first probe that succeeds ends that. A new chore that succeeds does
//     not: the others may fail for a reason of their own. They do not hold it up.
//   - There is a bound for the chores that wait; see Backlog.
//   - A Queue without chores has no goroutine.
type Queue struct {
	// Timeout bounds one call of a chore. Zero means 5 s. It must not be changed after the first call of Repeat.
	Timeout time.Duration

	mu      sync.Mutex
	fresh   []todo // that were not called yet
	failed  []todo
	workers int
	probing bool // the store fails, and one worker finds out when it answers
	idle    *sync.Cond
	closing chan struct{}   // closed when Close begins
	open    context.Context // ends when Close does not wait any longer; nil before the first call
	stop    context.CancelFunc
}

// todo is a chore that waits.
type todo struct {
	chore func(ctx context.Context) error
	until time.Time
	last  bool // Close had begun when the current call began
}

// Repeat calls chore in the background until it returns nil, but not after until: that is the time from which there is
// nothing to clean up, because the lock has ended by itself. So it must be safe to call chore again when an earlier
// call has had an effect, and it should return nil for errors that show that there is nothing left to do, such as one
// that matches locker.ErrNotHeld.
//
// The context ends at until, after the Timeout, and when Close does not wait any longer. chore has to return soon
// after that.
//
// After Close, Repeat does nothing. It also does nothing if there are twice as many chores as Backlog allows.
func (q *Queue) Repeat(until time.Time, chore func(ctx context.Context) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.begin()
	if q.open.Err() == nil && len(q.fresh)+len(q.failed) < 2*maxChores {
		q.fresh = append(q.fresh, todo{chore: chore, until: until})
		q.start()
	}
}

// Backlog returns an error if 16,384 chores wait. A store then refuses acquisitions, with an error that matches
// locker.ErrUnavailable as well, before it sends anything. So nothing is left behind that nobody undoes.
func (q *Queue) Backlog() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.fresh)+len(q.failed) < maxChores {
		return nil
	}
	return errBacklog
}

// Close calls each chore that is left once more, without pauses, for grace at most. Then it ends the contexts of the
// calls that are in progress, and returns when they have returned. The chores that are left are forgotten: the locks
// end with their TTL. Repeat may be called while Close waits.
func (q *Queue) Close(grace time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.begin()
	select {
	case <-q.closing:
	default:
		close(q.closing)
	}
	defer time.AfterFunc(grace, q.stop).Stop()
	for q.workers > 0 {
		q.idle.Wait()
	}
	q.stop()
	q.fresh, q.failed = nil, nil
}

// begin makes what the first call needs. Call with mu held.
func (q *Queue) begin() {
	if q.open == nil {
		q.open, q.stop = context.WithCancel(context.Background())
		q.closing, q.idle = make(chan struct{}), sync.NewCond(&q.mu)
	}
}

// start starts a worker if a chore waits for one. Call with mu held.
func (q *Queue) start() {
	room, waiting := maxWorkers, len(q.fresh)+len(q.failed)
	if q.probing {
		room, waiting = 2, len(q.fresh)
	}
	if q.workers < room && waiting > 0 {
		q.workers++
		go q.work()
	}
}

// work is a worker. It ends when no chore waits for it.
func (q *Queue) work() {
	probes, pause := false, time.Duration(0)
	for {
		t, ok := q.next(probes)
		if !ok {
			return
		}
		failed := q.call(t) != nil
		if probes, ok = q.called(t, failed, probes); !ok {
			return
		}
		if !failed {
			pause = 0
			continue
		}
		pause = min(max(2*pause, minPause), maxPause)
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-q.closing:
		}
		timer.Stop()
	}
}

// next takes a chore whose time is not over. If there is none for the worker, the worker ends.
func (q *Queue) next(probes bool) (t todo, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.open.Err() == nil {
		if newest := len(q.fresh) - 1; newest >= 0 && !probes {
			t = q.fresh[newest]
			q.fresh = slices.Delete(q.fresh, newest, newest+1)
		} else if len(q.failed) > 0 && probes == q.probing {
			t, q.failed[0] = q.failed[0], todo{} // the array does not keep what the chore refers to
			q.failed = q.failed[1:]
		} else {
			break
		}
		if !t.over() {
			select {
			case <-q.closing:
				t.last = true
			default:
			}
			q.start()
			return t, true
		}
	}
	if probes {
		q.probing = false
	}
	q.end()
	return todo{}, false
}

func (t todo) over() bool { return !time.Now().Before(t.until) }

func (q *Queue) call(t todo) error {
	end := time.Now().Add(cmp.Or(q.Timeout, defaultTimeout))
	if t.until.Before(end) {
		end = t.until
	}
	ctx, cancel := context.WithDeadline(q.open, end)
	defer cancel()
	return t.chore(ctx)
}

// called puts t back if it has failed. It reports whether the worker probes from now on, and whether it goes on.
func (q *Queue) called(t todo, failed, probes bool) (probesNow, goesOn bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if failed && !t.last {
		q.failed = append(q.failed, t)
	}
	if failed {
		q.fresh, q.failed = slices.DeleteFunc(q.fresh, todo.over), slices.DeleteFunc(q.failed, todo.over)
	}
	if q.probing && !probes { // another worker probes, and one is for new chores
		if failed && q.workers > 2 {
			q.end()
			return false, false
		}
		return false, true
	}
	q.probing = failed
	q.start()
	return failed, true
}

// end ends a worker, and starts another one if it has left chores to one. Call with mu held.
func (q *Queue) end() {
	q.workers--
	if q.open.Err() == nil {
		q.start()
	}
	if q.workers == 0 {
		q.idle.Broadcast()
	}
}
