package faults

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

// sentinelEnv is the number of failovers by sentinels. Without it, there is one.
const sentinelEnv = "LOCKER_SENTINEL"

// Each of the drivers that find a master by its sentinels goes on, whether the master is killed or hands over: every
// caller that waits gets its lock, and a lease that was held is either lost or still the only one.
func TestSentinel(t *testing.T) {
	n := scale(t, sentinelEnv, 1, strconv.Atoi)
	servers := []*redistest.Server{redistest.Start(t, promptly...)}
	for range 2 {
		servers = append(servers, redistest.StartReplica(t, servers[0]))
	}
	sentinels := redistest.StartSentinels(t, 3, 300*time.Millisecond, servers[0], servers[1:]...)
	cfg := drivers.Config{Sentinel: &drivers.Sentinel{Master: redistest.SentinelMaster}}
	for _, s := range sentinels {
		cfg.Sentinel.Addrs = append(cfg.Sentinel.Addrs, s.Addr())
	}
	t.Cleanup(func() {
		if t.Failed() {
			describe(t, servers, sentinels)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	var loads []*load
	for _, name := range drivers.Reaching(drivers.SentinelMaster) {
		d, err := drivers.Open(ctx, name, cfg)
		if err != nil {
			t.Fatal(err)
		}
		c := single.New(d, single.Prefix(name+":"))
		t.Cleanup(func() { _ = c.Close() })
		w := newLoad(ctx, t, name, 4, 2, 2*time.Second, c)
		defer w.running.Wait()
		loads = append(loads, w)
	}
	defer cancel()

	all, master := []int{0, 1, 2, 3}, servers[0]
	isMaster := func(s *redistest.Server) bool { return s.Pid() != 0 && s.IsMaster() }
	// replaced waits until another server is the only master. Until the sentinels demote a master that has handed over,
	// clients that are connected to it get locks there. On a machine that stands still for a moment, the sentinels may go
	// back to the former master.
	replaced := func(former *redistest.Server) {
		loads[0].eventually("a promoted replica", func() bool {
			return slices.ContainsFunc(servers, func(s *redistest.Server) bool { return s != former && isMaster(s) })
		})
		loads[0].eventually("one master is left", func() bool {
			left := slices.DeleteFunc(slices.Clone(servers), func(s *redistest.Server) bool { return !isMaster(s) })
			if len(left) == 1 {
				master = left[0]
			}
			return len(left) == 1
		})
	}
	text := gapsHead
	text += underLoads(loads, "SIGKILL", (n+1)/2, func(int) []int {
		former := master
		former.Kill()
		replaced(former)
		for _, w := range loads {
			w.recovers(w.locks)
		}
		former.Restart()
		former.Follow(t, master)
		return all
	})
	text += underLoads(loads, "SENTINEL FAILOVER", n/2, func(int) []int {
		loads[0].eventually("the sentinels see that a replica is fit", func() bool {
			_, err := sentinels[0].Do("SENTINEL", "FAILOVER", redistest.SentinelMaster)
			return err == nil
		})
		replaced(master)
		return all
	})
	cancel()
	t.Logf("%d failovers; down after 300 ms; 8 callers for 4 keys of each driver.\n\n%s", n, text)
}

// describe logs what servers and sentinels say.
func describe(t *testing.T, servers, sentinels []*redistest.Server) {
	for _, s := range servers {
		said, err := s.Do("ROLE")
		t.Logf("%s %s: %v %v", time.Now().Format(time.TimeOnly), s.Addr(), said, err)
	}
	for _, s := range sentinels {
		said, err := s.Do("SENTINEL", "MASTER", redistest.SentinelMaster)
		t.Logf("sentinel %s: %v %v", s.Addr(), said, err)
	}
}
