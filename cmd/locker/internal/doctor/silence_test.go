package doctor_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

// stalled is a driver whose first release is answered later than clients wait for the answer.
type stalled struct {
	lent
	drivers.Subscriber
	once sync.Once
}

func (s *stalled) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	replies, err := s.lent.Do(ctx, cmds...)
	if slices.ContainsFunc(cmds, func(cmd drivers.Command) bool { return wire.Releases(cmd) }) {
		s.once.Do(func() { <-time.After(1200 * time.Millisecond) })
	}
	return replies, err
}

// A machine that stands still for a moment is no failure of the server.
func TestAnswerThatIsLateIsWaitedForAgain(t *testing.T) {
	t.Parallel()
	h := startServers(t, 1, "redigo")
	d := h.Nodes[0].Driver
	h.Nodes[0].Driver = &stalled{lent: lent{d}, Subscriber: d.(drivers.Subscriber)}
	h.want(t)
}
