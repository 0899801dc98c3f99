//go:build seeded

package sim

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// With a seeded runtime, a seed has one history.
func TestASeedHasOneHistory(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	const times = 20
	from, most, all := firstSeed(), 0, 0
	for i := range *seeds {
		runtime.GC()
		o := Draw(from+uint64(i), Model)
		hashes := map[uint64]int{}
		for range times {
			hashes[play(t, o).Hash]++
		}
		top := 0
		for _, n := range hashes {
			top = max(top, n)
		}
		if top < times {
			t.Logf("%d of %d plays are alike: %s", top, times, o.again())
		}
		most += top
		all += times
	}
	t.Logf("%d of %d plays (%.2f %%) are like most others of their seed", most, all, 100*float64(most)/float64(all))
	if float64(most) < .9*float64(all) {
		t.Error("a seed fixes too little")
	}
}
