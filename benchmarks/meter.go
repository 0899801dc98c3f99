package main

import (
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
)

// meter measures what some work costs this process and the servers.
type meter struct {
	group  []*redistest.Server
	memory runtime.MemStats
	cpu    time.Duration
	work   work
	start  time.Time
}

// newMeter also resets the statistics of the servers.
func newMeter(group []*redistest.Server) *meter {
	resetStatistics(group)
	runtime.GC() // garbage of earlier work does not count
	m := &meter{group: group, work: workOf(group)}
	runtime.ReadMemStats(&m.memory)
	m.cpu = clientCPU()
	m.start = time.Now()
	return m
}

// stop returns the cost since newMeter, per operation, and the work of the servers.
func (m *meter) stop(operations int) (Figures, work) {
	took := time.Since(m.start)
	cpu := clientCPU() - m.cpu
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	w := workOf(m.group).since(m.work)
	n := float64(max(1, operations))
	f := Figures{
		"operations": float64(operations),
		"rate":       float64(operations) / took.Seconds(),
		"mean_us":    micros(took) / n,
		"allocs":     float64(now.Mallocs-m.memory.Mallocs) / n,
		"bytes":      float64(now.TotalAlloc-m.memory.TotalAlloc) / n,
		"client_us":  micros(cpu) / n,
		"server_us":  micros(w.cpu) / n,
		"trips":      w.reads / n,
		"commands":   w.commands / n,
		"scripts":    w.calls["evalsha"] / n,
		"native":     (w.calls["delex"] + w.calls["delifeq"]) / n,
	}
	if w.scriptP999 > 0 {
		f["script_p999_us"] = w.scriptP999
	}
	return f, w
}

// clientCPU is the processor time this process has used.
func clientCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// samples are durations; it stops taking them when it is full, so that it never allocates.
type samples []time.Duration

func newSamples(room int) samples { return make(samples, 0, room) }

func (s *samples) add(d time.Duration) {
	if len(*s) < cap(*s) {
		*s = append(*s, d)
	}
}

// quantile sorts s.
func (s samples) quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	slices.Sort(s)
	return micros(s[min(len(s)-1, int(q*float64(len(s))))])
}
