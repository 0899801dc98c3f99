package node

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
)

// cluster makes any driver one of several servers.
type cluster struct {
	drivers.Driver
	closing func() // is told of each Close; may be nil
}

func (cluster) Cluster() {}

func (c cluster) Close() error {
	if c.closing != nil {
		c.closing()
	}
	return c.Driver.Close()
}

// What has to be undone is undone before the driver is closed, whichever group of slots is the last.
func TestClusterClosesTheDriverLast(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		waiting := 0
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			waiting += n
		}
		f := &fake{}
		f.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if strings.Contains(cmds[0][3], "slow") { // takes its time, whatever it is
				count(1)
				time.Sleep(300 * time.Millisecond) // twice, and less than the timeout together, when Close gives up
				count(-1)
				return nil, errors.New("no answer")
			}
			return []drivers.Reply{int64(7)}, nil
		})
		closing := func() {
			mu.Lock()
			defer mu.Unlock()
			if waiting > 0 {
				t.Error("the driver is closed while it undoes something")
			}
		}
		s := NewCluster(cluster{f, closing}, Options{Timeout: time.Second})
		for _, key := range []string{"slow", "quick", "another"} {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := s.Acquire(ctx, backend.Request{Key: key, Token: "owner", TTL: time.Minute})
			if (err != nil) != (key == "slow") {
				t.Errorf("%s: %v", key, err)
			}
		}
		begun := time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if !f.isClosed() || f.after > 0 {
			t.Errorf("the driver is closed: %v, and was sent %d batches after that", f.isClosed(), f.after)
		}
		if len(f.sent("handover")) == 0 || time.Since(begun) < 500*time.Millisecond {
			t.Errorf("the clean-up was not waited for: %d sent, Close took %v", len(f.sent("handover")), time.Since(begun))
		}
		for _, key := range []string{"slow", "never used"} { // of a group that has a Node, and of one that has none
			_, err := s.Acquire(t.Context(), backend.Request{Key: key, Token: "owner", TTL: time.Minute})
			if !errors.Is(err, locker.ErrClosed) {
				t.Errorf("%s, after Close: %v", key, err)
			}
		}
		if f.after > 0 {
			t.Error("it was used after Close")
		}
	})
}

// A key and all that belongs to its lock are in one group.
func TestClusterKeepsALockTogether(t *testing.T) {
	s := NewCluster(cluster{Driver: &fake{}}, Options{Prefix: "lock:"})
	defer func() { _ = s.Close() }()
	nodes := map[*Node]bool{}
	for _, key := range []string{"a", "b", "{a}b", "}", "a{b}c"} {
		n := s.of(key)
		if s.of(key) != n {
			t.Errorf("%q is of two Nodes", key)
		}
		nodes[n] = true
	}
	if len(nodes) < 3 {
		t.Errorf("different keys are of %d Nodes", len(nodes))
	}
}

// stuck is a driver that does not close.
type stuck struct{ cluster }

func (stuck) Close() error { return errors.New("stuck") }

// What is wrong with the driver is said once, however many groups are in use.
func TestClusterSaysOnceWhatIsWrong(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := NewCluster(stuck{cluster{Driver: &fake{}}}, Options{})
		for _, key := range []string{"a", "b", "c"} {
			s.of(key)
		}
		if err := s.Close(); err == nil || err.Error() != "stuck" {
			t.Errorf("got %v", err)
		}
	})
}
