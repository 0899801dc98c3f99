package pipeline

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/virtual"
)

// two replicas have to confirm within a second.
var two = Replicas{Want: 2, Timeout: time.Second}

// granting is a command that grants a lock if its reply is 1.
var granting = script.Command{
	Words: drivers.Command{"EVALSHA", "digest", "0"}, Source: "source",
	Grants: func(r drivers.Reply) bool { return r == int64(1) },
}

// replicas answers WAIT with have, after the time that it says if that is fewer than it asks for, and other commands
// with next.
func replicas(have drivers.Reply, next answers) answers {
	return func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		last := len(cmds) - 1
		if cmds[last][0] != "WAIT" {
			return nil, errors.New("nobody waits for replicas")
		}
		replies, err := next(ctx, cmds[:last])
		want, _ := strconv.Atoi(cmds[last][1])
		limit, _ := strconv.Atoi(cmds[last][2])
		if n, counted := have.(int64); err == nil && counted && int(n) < want {
			select {
			case <-time.After(time.Duration(limit) * time.Millisecond):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return append(replies, have), err
	}
}

// withReplicas is bubble for a pipeline that waits for two replicas.
func withReplicas(t *testing.T, direct bool, f func(t *testing.T, d *fake, p *Pipeline)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		d := &fake{direct: direct}
		p := NewReplicated(d, timeout, two)
		f(t, d, p)
		if !p.Drain(t.Context()) {
			t.Error("it is not drained")
		}
		p.Close()
	})
}

func isShort(t *testing.T, err error, got int) {
	t.Helper()
	var short *Shortfall
	if !errors.As(err, &short) || short.Got != got || short.Want != 2 {
		t.Errorf("want a shortfall of %d of 2, seen %v", got, err)
	}
}

// There is one WAIT for a batch, and it comes last.
func TestBatchWaitsOnceForReplicas(t *testing.T) {
	withReplicas(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		wake := make(chan struct{})
		d.will(until(wake, replicas(int64(2), ok)))
		var callers sync.WaitGroup
		for range 100 {
			callers.Go(func() {
				if err := do(t.Context(), p, granting); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(wake)
		callers.Wait()
		sizes := d.sizes()
		slices.Sort(sizes)
		if want := []int{2, 2, 2, 2, 97}; !slices.Equal(sizes, want) {
			t.Errorf("batches of %d with their WAIT, want %d", sizes, want)
		}
	})
}

// What was granted does not count, and the caller learns what it was. What grants nothing is as it was.
func TestShortfall(t *testing.T) {
	for _, direct := range []bool{false, true} {
		withReplicas(t, direct, func(t *testing.T, d *fake, p *Pipeline) {
			ctx := context.WithoutCancel(t.Context())
			d.will(replicas(int64(1), ok))
			start := time.Now()
			reply, err := p.Do(ctx, granting, time.Minute, nil)
			isShort(t, err, 1)
			if took := time.Since(start); reply != int64(1) || took != two.Timeout {
				t.Errorf("reply %v after %v", reply, took)
			}
			for _, held := range []drivers.Reply{int64(0), drivers.ServerError("READONLY of a replica")} {
				d.will(replicas(int64(0), all(held)))
				if reply, err := p.Do(ctx, granting, time.Minute, nil); reply != held || err != nil {
					t.Errorf("reply %v, error %v", reply, err)
				}
			}
			d.will(replicas(int64(3), ok))
			if err := do(ctx, p, granting); err != nil {
				t.Errorf("more replicas than needed: %v", err)
			}
		})
	}
}

// Servers and proxies that do not know or do not allow WAIT confirm nothing.
func TestWaitIsRefused(t *testing.T) {
	withReplicas(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		refusal := drivers.ServerError("NOPERM this user has no permissions to run the 'wait' command")
		for _, reply := range []drivers.Reply{refusal, nil, "2"} {
			d.will(replicas(reply, ok))
			err := do(t.Context(), p, granting)
			isShort(t, err, 0)
			var short *Shortfall
			if errors.As(err, &short) && errors.Is(short.Err, refusal) != (reply == refusal) {
				t.Errorf("%v: %v", reply, err)
			}
		}
	})
}

// Joined commands are confirmed together. The ones that the server has not executed are not concerned: they are sent by
// themselves, with a WAIT of their own that has the time that is left.
func TestJoinedCommandsAreConfirmed(t *testing.T) {
	withReplicas(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		taking := taking("k")
		taking.Grants = granting.Grants
		d.will(replicas(int64(1), joins(int64(1), ok)))
		isShort(t, do(t.Context(), p, taking), 1)
		start := time.Now()
		d.will(replicas(int64(1), slowly(300*time.Millisecond, joins(int64(0), ok))))
		isShort(t, do(t.Context(), p, taking), 1)
		// Two exchanges, of which the first uses all the time for replicas.
		if took := time.Since(start); took != 2*300*time.Millisecond+two.Timeout+time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// The server is asked to answer before the caller that waits in the driver has to leave.
func TestReplicasHaveNoMoreTimeThanTheCaller(t *testing.T) {
	withReplicas(t, true, func(t *testing.T, d *fake, p *Pipeline) {
		d.will(replicas(int64(0), ok))
		_, err := p.Do(context.WithoutCancel(t.Context()), granting, 400*time.Millisecond, nil)
		isShort(t, err, 0)
	})
}

// An exchange may take its timeout and that of the replicas.
func TestExchangeHasTimeForReplicas(t *testing.T) {
	withReplicas(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		d.will(slowly(timeout-time.Millisecond, replicas(int64(0), ok)))
		_, err := p.Do(t.Context(), granting, time.Minute, nil)
		isShort(t, err, 0)
		start := time.Now()
		d.will(hangs)
		_, err = p.Do(t.Context(), granting, time.Minute, nil)
		if took := time.Since(start); err == nil || took != timeout+two.Timeout {
			t.Errorf("%v after %v", err, took)
		}
	})
}
