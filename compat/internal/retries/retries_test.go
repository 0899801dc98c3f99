package retries_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/compat/internal/retries"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// program is a caller of Acquire, in virtual time.
type program struct {
	*testing.T
	call   retries.Call
	begun  time.Time
	tried  []time.Duration // when it has made attempts
	queued int             // how often it was in the queue
	asked  int             // how often the strategy was asked
	inside bool            // it is in the queue
}

// newProgram returns a program whose strategy has n pauses. Its attempts get what try returns, and it waits in the
// queue in vain.
func newProgram(t *testing.T, n int, pause time.Duration, try func() (locker.Lease, error)) *program {
	p := &program{T: t, begun: time.Now()}
	p.call = retries.Call{
		Try: func(context.Context) (locker.Lease, error) {
			p.tried = append(p.tried, time.Since(p.begun))
			return try()
		},
		Wait: func(ctx context.Context) (locker.Lease, error) {
			p.queued++
			p.inside = true
			defer func() { p.inside = false }()
			<-ctx.Done()
			return nil, ctx.Err()
		},
		Next: func() (time.Duration, bool) {
			p.asked++
			return pause, p.asked <= n
		},
		Again: func(err error) bool { return !errors.Is(err, locker.ErrInvalid) },
	}
	return p
}

// acquires checks the outcome, that attempts were made when they should, and that nothing goes on.
func (p *program) acquires(ctx context.Context, want error, tried ...time.Duration) {
	p.Helper()
	lease, err := p.call.Acquire(ctx)
	if (lease != nil) != (want == nil) || !errors.Is(err, want) {
		p.Errorf("%v, %v, want %v", lease, err, want)
	}
	if !slices.Equal(p.tried, tried) {
		p.Errorf("attempts at %v, want %v", p.tried, tried)
	}
	if p.inside {
		p.Error("the caller is still in the queue")
	}
}

// held is what an attempt sees of a holder. One that uses another library has no label.
func held(label string) func() (locker.Lease, error) {
	return func() (locker.Lease, error) { return nil, &locker.HeldError{Label: label} }
}

// freeAt is a lock that a program without a label has until then.
func freeAt(t *testing.T, free time.Duration) func() (locker.Lease, error) {
	begun, l := time.Now(), memory.New()
	t.Cleanup(func() { _ = l.Close() })
	return func() (locker.Lease, error) {
		if time.Since(begun) < free {
			return nil, &locker.HeldError{}
		}
		return l.TryLock(t.Context(), "k")
	}
}

const ms = time.Millisecond

func TestHolderThatHasNotMovedIsAskedForAtEachPause(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		newProgram(t, 10, 100*ms, freeAt(t, 250*ms)).acquires(t.Context(), nil, 0, 100*ms, 200*ms, 300*ms)
	})
}

func TestHolderThatHasMovedIsAskedForOnceASecondAndAtTheEnd(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := newProgram(t, 4, 100*ms, held("web-7:1"))
		p.acquires(t.Context(), locker.ErrHeld, 0, 400*ms)
		if p.queued != 1 {
			t.Errorf("the caller was in the queue %d times, want once", p.queued)
		}
		newProgram(t, 13, 200*ms, held("web-7:1")).acquires(t.Context(), locker.ErrHeld, 0, 1000*ms, 2000*ms, 2600*ms)
	})
}

func TestReleaseOfAHolderThatHasMovedEndsTheWait(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		l := memory.New()
		defer func() { _ = l.Close() }()
		holder, err := l.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		p := newProgram(t, 10, 100*ms, func() (locker.Lease, error) { return l.TryLock(t.Context(), "k") })
		p.call.Wait = func(ctx context.Context) (locker.Lease, error) { return l.Lock(ctx, "k") }
		time.AfterFunc(250*ms, func() { _ = holder.Unlock(t.Context()) })
		p.acquires(t.Context(), nil, 0)
		if took := time.Since(p.begun); took != 250*ms {
			t.Errorf("the caller has waited for %v", took)
		}
	})
}

func TestStrategyWithoutRetriesMakesOneAttempt(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := newProgram(t, 0, 0, held(""))
		p.acquires(t.Context(), locker.ErrHeld, 0)
		if p.queued != 0 {
			t.Error("the caller was in the queue")
		}
	})
}

func TestErrorThatIsFinalEndsTheCall(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := newProgram(t, 5, 100*ms, func() (locker.Lease, error) { return nil, locker.ErrInvalid })
		p.acquires(t.Context(), locker.ErrInvalid, 0)
		if p.asked != 0 {
			t.Error("the strategy was asked")
		}
	})
}

func TestContextEndsTheWait(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		for _, label := range []string{"", "web-7:1"} {
			ctx, cancel := context.WithTimeout(t.Context(), 150*ms)
			defer cancel()
			p := newProgram(t, 10, time.Minute, held(label))
			if _, err := p.call.Acquire(ctx); err == nil || time.Since(p.begun) != 150*ms || p.inside {
				t.Errorf("%v after %v, in the queue: %v", err, time.Since(p.begun), p.inside)
			}
		}
	})
}

// The store fails at first, and the caller tries again, but not in a queue that may not be there.
func TestFaultsCostAttempts(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		free := freeAt(t, 0)
		var p *program
		p = newProgram(t, 5, 100*ms, func() (locker.Lease, error) {
			if len(p.tried) < 3 {
				return nil, locker.ErrUnavailable
			}
			return free()
		})
		p.acquires(t.Context(), nil, 0, 100*ms, 200*ms)
		if p.queued != 0 {
			t.Error("the caller was in the queue")
		}
	})
}

// The queue fails while the caller waits in it. The attempts go on, and it returns to the queue.
func TestFaultOfTheQueueIsTolerated(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := newProgram(t, 5, 100*ms, held("web-7:1"))
		wait := p.call.Wait
		p.call.Wait = func(ctx context.Context) (locker.Lease, error) {
			if time.Since(p.begun) < 50*ms {
				p.queued++
				return nil, locker.ErrUnavailable
			}
			return wait(ctx)
		}
		p.acquires(t.Context(), locker.ErrHeld, 0, 100*ms, 400*ms)
		if p.queued != 2 {
			t.Errorf("the caller was in the queue %d times, want 2", p.queued)
		}
	})
}

// The queue grants the lock at the moment at which the strategy ends.
func TestLockThatIsGrantedAtTheEndIsNotLost(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		granted := freeAt(t, 0)
		p := newProgram(t, 2, 100*ms, held("web-7:1"))
		p.call.Wait = func(ctx context.Context) (locker.Lease, error) {
			<-ctx.Done()
			return granted()
		}
		p.acquires(t.Context(), nil, 0, 200*ms)
	})
}

func TestStrategyThatDoesNotSleepDoesNotSpin(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := newProgram(t, 1<<30, 0, freeAt(t, time.Second))
		if _, err := p.call.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if p.asked > 1001 {
			t.Errorf("the strategy was asked %d times in a second", p.asked)
		}
	})
}
