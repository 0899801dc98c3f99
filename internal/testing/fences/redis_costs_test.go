package fences_test

import (
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/internal/testing/redistest"
)

// BenchmarkCostsOfRedis compares GET and SET with the same under a fence, one after the other: two round trips, and
// three. On a server that writes to the disk, SET waits for it, and so does entering.
func BenchmarkCostsOfRedis(b *testing.B) {
	for name, args := range map[string][]string{
		"memory": {"--save", ""}, "disk": {"--appendonly", "yes", "--appendfsync", "always"},
	} {
		b.Run(name, func(b *testing.B) {
			s := redistest.Start(b, args...)
			d, err := drivers.Open(b.Context(), "goredis", drivers.Config{Addr: s.Addr()})
			must(b, err)
			defer d.Close()
			fences := fence.Redis{Driver: d}
			do := func(cmd ...string) {
				_, err := d.Do(b.Context(), cmd)
				must(b, err)
			}
			var plain, fenced []time.Duration
			took := func(took *[]time.Duration, work func()) {
				begun := time.Now()
				work()
				*took = append(*took, time.Since(begun))
			}
			for token := uint64(1); b.Loop(); token++ {
				took(&plain, func() {
					do("GET", balanceKey)
					do("SET", balanceKey, "10")
				})
				took(&fenced, func() {
					must(b, fences.Enter(b.Context(), hold(token)...))
					do("GET", balanceKey)
					must(b, fences.Write(b.Context(), hold(token), value("10")))
				})
			}
			slices.Sort(plain)
			slices.Sort(fenced)
			p, f := plain[len(plain)/2], fenced[len(fenced)/2]
			b.ReportMetric(float64(p.Nanoseconds())/1e3, "µs/plain")
			b.ReportMetric(float64(f.Nanoseconds())/1e3, "µs/fenced")
			b.ReportMetric(float64(f)/float64(p), "ratio")
		})
	}
}
