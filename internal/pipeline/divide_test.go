package pipeline

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/script"
)

var restGuard = script.NewGuard("p:", time.Minute, func() bool { return false })

// mixed returns calls that acquire and calls that release, by turns as long as there are both.
func mixed(acquire, release int, g *script.Guard) (calls []*Call) {
	for i := range max(acquire, release) {
		if i < acquire {
			c := &Call{Command: taking(fmt.Sprint("k", i))}
			c.Usual.Guard = g
			calls = append(calls, c)
		}
		if i < release {
			calls = append(calls, &Call{Command: leaving(fmt.Sprint("l", i))})
		}
	}
	return calls
}

// Batches fill their scripts. With a restart guard, so do the acquisitions, if one script has no room for them.
func TestBatchesFillTheirScripts(t *testing.T) {
	p := New(&fake{}, timeout)
	for _, c := range []struct {
		guard            *script.Guard
		acquire, release int
		want             string // the acquisitions and releases of each script, of batch after batch
	}{
		{nil, 50, 78, "32+0 18+14 0+32 0+32"},
		{restGuard, 50, 78, "32+0 0+32 0+32, 18+14"},
		{restGuard, 32, 96, "32+0 0+32 0+32 0+32"},
		{restGuard, 20, 108, "20+12 0+32 0+32 0+32"},
		{restGuard, 64, 64, "32+0 32+0 0+32 0+32"},
		{restGuard, 80, 80, "32+0 32+0 0+32 0+32, 16+16"},
		{restGuard, 63, 120, "32+0 0+32 0+32 0+32, 31+1, 0+23"},
		{restGuard, 150, 10, "32+0 32+0 32+0 0+10, 32+0, 22+0"},
		{restGuard, 138, 0, "32+0 32+0 32+0 32+0, 10+0"},
		{restGuard, 33, 20, "32+0 0+20, 1+0"},
		{nil, 33, 20, "16+16, 17+4"},
		{nil, 20, 14, "18+14, 2+0"},
		{restGuard, 20, 14, "18+14, 2+0"},
		{restGuard, 0, 1, "0+1"},
	} {
		var batches []string
		batch, rest := divide(mixed(c.acquire, c.release, c.guard), true)
		for ; len(batch) > 0; batch, rest = divide(rest, true) {
			var sizes []string
			for _, r := range p.requests(batch) {
				if !r.joined {
					continue // a probe
				}
				a := 0
				for a < len(r.calls) && !r.calls[a].Usual.IsRelease() {
					a++
				}
				sizes = append(sizes, fmt.Sprint(a, "+", len(r.calls)-a))
			}
			batches = append(batches, strings.Join(sizes, " "))
		}
		if got := strings.Join(batches, ", "); got != c.want {
			t.Errorf("guard %v, %d acquisitions, %d releases: sent %s, want %s",
				c.guard != nil, c.acquire, c.release, got, c.want)
		}
	}
}

// Whatever is pending, no call is lost or sent twice, calls of one kind keep their order, and the oldest ones do not
// wait for others to come.
func TestTheOldestCallsAreInTheBatch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		calls := mixed(rnd.IntN(200), rnd.IntN(200), restGuard)
		rnd.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
		age := map[*Call]int{}
		for i, c := range calls {
			age[c] = i
		}
		n := len(calls)
		batch, rest := divide(slices.Clone(calls), true)
		all := slices.Concat(batch, rest)
		slices.SortFunc(all, func(a, b *Call) int { return age[a] - age[b] })
		if !slices.Equal(all, calls) || len(batch) > MaxBatch {
			t.Fatalf("of %d calls, %d are sent, and %d stay pending", n, len(batch), len(rest))
		}
		oldest := min(n, script.MaxJoined)
		if late := slices.IndexFunc(rest, func(c *Call) bool { return age[c] < oldest }); late >= 0 {
			t.Fatalf("of %d calls, the one at position %d stays pending", n, age[rest[late]])
		}
		for _, guarded := range []bool{false, true} {
			var order []int
			for _, c := range slices.Concat(batch, rest) {
				if c.hasGuard() == guarded {
					order = append(order, age[c])
				}
			}
			if !slices.IsSorted(order) {
				t.Fatalf("of %d calls, those with guard %v are sent in the order %d", n, guarded, order)
			}
		}
	}
}

// Behind a cluster calls of one slot share a script, and nothing is gained by sending fewer at once.
func TestSlotsAreNotDivided(t *testing.T) {
	if batch, _ := divide(mixed(63, 65, restGuard), false); len(batch) != MaxBatch {
		t.Errorf("sent %d calls of %d", len(batch), MaxBatch)
	}
}
