package node

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/pipeline"
)

// replicas are those of the server of a testbed. Its clients need one of them.
type replicas struct {
	mu   sync.Mutex
	have int           // as many replicas confirm
	lag  time.Duration // how long they take
	// alone are the kinds of the commands that were sent without a WAIT after them, and confirmed those of the others.
	alone, confirmed []string
}

const replicasTimeout = 500 * time.Millisecond

func (r *replicas) are(have int, lag time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.have, r.lag = have, lag
}

// withConfirmation is a driver for a server with replicas. It answers WAIT when they have confirmed, or in the end.
type withConfirmation struct {
	drivers.Driver
	drivers.Subscriber
	*replicas
}

func (d withConfirmation) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	d.mu.Lock()
	have, lag, last := d.have, d.lag, len(cmds)-1
	waits := cmds[last][0] == "WAIT"
	for _, cmd := range cmds {
		if waits {
			d.confirmed = append(d.confirmed, kindOf(cmd))
		} else {
			d.alone = append(d.alone, kindOf(cmd))
		}
	}
	d.mu.Unlock()
	if !waits {
		return d.Driver.Do(ctx, cmds...)
	}
	replies, err := d.Driver.Do(ctx, cmds[:last]...)
	if err != nil {
		return nil, err
	}
	want, _ := strconv.Atoi(cmds[last][1])
	limit, _ := strconv.Atoi(cmds[last][2])
	if patience := time.Duration(limit) * time.Millisecond; have < want || lag > patience {
		lag, have = patience, 0
	}
	select {
	case <-time.After(lag):
		return append(replies, int64(have)), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// onReplicated runs f on a testbed whose clients need one replica, which is there. All clients are made by
// open.
func onReplicated(t *testing.T, f func(x *testbed, r *replicas, open func() *client)) {
	t.Helper()
	onTestbed(t, func(x *testbed) {
		x.replicas = pipeline.Replicas{Want: 1, Timeout: replicasTimeout}
		r := &replicas{have: 1, lag: oneWay}
		change := func(d drivers.Driver) drivers.Driver { return withConfirmation{d, d.(drivers.Subscriber), r} }
		f(x, r, func() *client { return x.client(change) })
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, kind := range r.alone {
			if slices.Contains([]string{"acquire", "enqueue", "claim", "extend", "export", "resume"}, kind) {
				x.Errorf("the kind %s was not confirmed", kind)
			}
		}
		for _, kind := range r.confirmed {
			if slices.Contains([]string{"release", "handover", "PUBLISH"}, kind) {
				x.Errorf("the kind %s has waited for replicas", kind)
			}
		}
	})
}
