package pipeline

import (
	"slices"
	"testing"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
	"github.com/golocker/locker/internal/testing/virtual"
)

// clustered is a driver of a Redis Cluster.
type clustered struct{ *fake }

func (clustered) Cluster() {}

// slotsOf checks that the joined commands of a batch keep slots apart, and returns how many calls each has.
func slotsOf(t *testing.T, batch []drivers.Command) (sizes []int) {
	t.Helper()
	for _, cmd := range batch {
		taken, left, joined := locksOf(cmd)
		locks := append(slices.Clone(taken), left...)
		for _, lock := range locks {
			if script.Slot(lock) != script.Slot(locks[0]) {
				t.Errorf("%q are joined", locks)
			}
		}
		if joined {
			sizes = append(sizes, len(locks))
		}
	}
	return sizes
}

var ofTwoSlots = []script.Command{
	taking("{a}1"), taking("{b}1"), leaving("{a}2"), taking("{a}3"), leaving("{b}2"), get,
}

func TestSlotsOfAClusterAreKeptApart(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		d := &fake{}
		p := New(clustered{d}, timeout)
		_, batches := together(t, d, p, serves(func(string) int64 { return 1 }, ok), ofTwoSlots...)
		if got := slotsOf(t, batches[0]); len(batches) != 1 || !slices.Equal(got, []int{3, 2}) {
			t.Errorf("%d batches, the first joins %d", len(batches), got)
		}
		p.Close()
	})
}

// A driver may reach a server of a cluster without knowing. The first refusal shows that it does.
func TestServerOfAClusterIsNoticed(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		crossed := joins(drivers.ServerError("CROSSSLOT Keys in request don't hash to the same slot"), all(int64(3)))
		calls, batches := together(t, d, p, crossed, ofTwoSlots...)
		if got := answersOf(calls); len(batches) != 2 || slices.ContainsFunc(got, func(a string) bool { return a != "3" }) {
			t.Errorf("%d exchanges, answers %q", len(batches), got)
		}
		_, batches = together(t, d, p, serves(func(string) int64 { return 1 }, ok), ofTwoSlots...)
		if got := slotsOf(t, batches[0]); len(batches) != 1 || !slices.Equal(got, []int{3, 2}) {
			t.Errorf("later, %d batches, the first joins %d", len(batches), got)
		}
	})
}
