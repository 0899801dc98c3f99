package single_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/semaphore"
	"github.com/golocker/locker/single"
)

// A free permit costs one call of one script, and so does each of those that are free beside others that are held.
func TestFreePermitIsOneCommand(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		l := semaphore.New(closing(t, single.New(build(t, s.Addr()))), 3)
		// At first, the server does not know the scripts.
		eventually(t, 30*time.Second, "one call of a script for each permit", func() bool {
			one := true
			for range 3 {
				before := roundTrips(t, s)
				lease, err := l.Lock(t.Context(), "permits")
				if err != nil {
					t.Fatal(err)
				}
				one = one && roundTrips(t, s)-before == 1
				defer unlockAll(t, lease)
			}
			return one
		})
	})
}

// Behind a cluster, a gate in another hash slot cannot be looked at in the same step, and nothing is sent. The same
// holds for more locks than a step has room for.
func TestStepsThatAreNotPossible(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var wire simnode.Wire
		p := personalities["cluster"]
		nodes := simnode.NewNodes(p.servers)
		for _, n := range nodes {
			n.Deliver = wire.Messages
		}
		b := backendOf(p.open(nodes, &wire))
		some := b.(backend.ManyAcquirer)
		reqs := func(n int) (reqs []backend.Request) {
			for i := range n {
				reqs = append(reqs, backend.Request{
					Key: fmt.Sprintf("{x}%02d", i), Token: backend.NewToken(), TTL: time.Minute,
				})
			}
			return reqs
		}
		for what, step := range map[string]struct {
			locks int
			gate  string
		}{"a gate in another slot": {2, "y"}, "65 locks": {65, "{x}gate"}} {
			_, err := some.AcquireMany(t.Context(), reqs(step.locks), backend.Choice{N: 1, Gates: []string{step.gate}})
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := some.AcquireMany(t.Context(), reqs(64), backend.Choice{N: 1, Gates: []string{"{x}gate"}}); err != nil {
			t.Errorf("64 locks: %v", err)
		}
		_ = b.(io.Closer).Close()
	})
}
