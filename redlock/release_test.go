package redlock

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
)

// A release that has won waits for the node that keeps the queue to say whether others wait, unless that was silent
// lately.
func TestReleaseHearsTheNodeThatKeepsTheQueue(t *testing.T) {
	for _, silent := range []bool{false, true} {
		virtual.Test(t, func(t *testing.T) {
			keeper := agreed("k", 5)
			b, _ := quorum(t, func(i int) simnode.Network {
				return func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
					time.Sleep(time.Millisecond)
					if i == keeper {
						time.Sleep(2 * time.Millisecond)
					}
					return execute(), nil
				}
			}, 5)
			req := acquired(t, b)
			time.Sleep(time.Second) // until all have granted
			want := 3 * time.Millisecond
			if silent {
				b.health.silent(keeper)
				want = time.Millisecond
			}
			begun := time.Now()
			if err := b.Release(t.Context(), req); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took != want {
				t.Errorf("silent %t: it took %v, want %v", silent, took, want)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Unlock waits for a grant that is under way, but not beyond its bound.
func TestUnlockDoesNotWaitForGrantsBeyondItsBound(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var slow, silent atomic.Bool
		b, _ := quorum(t, func(i int) simnode.Network {
			return func(ctx context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				switch {
				case i == 4 && silent.Load():
					<-ctx.Done()
					return nil, ctx.Err()
				case slow.Load():
					time.Sleep(990 * time.Millisecond)
				default:
					time.Sleep(20 * time.Millisecond) // four times of which Unlock would wait for the last node
				}
				return execute(), nil
			}
		}, 5)
		c := locker.NewClient(b)
		lease, err := c.Lock(t.Context(), "k") // all nodes have been seen to answer
		if err == nil {
			err = lease.Unlock(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		silent.Store(true)
		if lease, err = c.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		slow.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begun := time.Now()
		if err := lease.Unlock(ctx); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != time.Second {
			t.Errorf("Unlock took %v of a bound of 1s, and its majority 990ms", took)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A second Unlock counts what nodes answer to the first one, which has been given up on by then.
func TestUnlockCountsAnswersToAnEarlierOne(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var delay atomic.Int64
		delay.Store(int64(time.Millisecond))
		b, _ := quorum(t, func(int) simnode.Network {
			return func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				time.Sleep(time.Duration(delay.Load()))
				return execute(), nil
			}
		}, 3)
		c := locker.NewClient(b)
		lease, err := c.Lock(t.Context(), "k", locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // until all have granted
		delay.Store(int64(1500 * time.Millisecond))
		if err := lease.Unlock(t.Context()); !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("the first call, after a second: %v", err)
		}
		delay.Store(int64(600 * time.Millisecond)) // after the first release was executed, and answered
		if err := lease.Unlock(t.Context()); err != nil {
			t.Errorf("the second call: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A release asks a node whose acquisition has ended by the time that it is won, whatever is known of the node.
func TestReleaseAsksNodesThatHaveAnsweredMeanwhile(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var late atomic.Bool
		late.Store(true)
		gate := make(chan struct{})
		b, _ := quorum(t, func(i int) simnode.Network {
			return func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				if i == 4 && late.Swap(false) {
					<-gate
					execute()
					return nil, io.EOF
				}
				return execute(), nil
			}
		}, 5)
		req := acquired(t, b)
		b.health.silent(4)
		b.calls.Enter()
		u := newLeaseUpdate(b, req.Private.(*lease), req, opRelease)
		u.begin(t.Context())
		synctest.Wait() // four have confirmed the release
		close(gate)
		synctest.Wait() // the fifth may have granted
		if err := u.wait(t.Context()); err != nil {
			t.Error(err)
		}
		if !u.tally.asked.has(4) {
			t.Error("the node is not asked")
		}
		b.calls.Leave()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}
