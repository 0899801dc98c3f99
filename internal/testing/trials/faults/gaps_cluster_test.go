package faults

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/single"
)

// clusterEnv is the number of slots that move under each driver. There are half as many failovers.
const clusterEnv = "LOCKER_CLUSTER"

// onCluster returns a driver of a cluster.
func onCluster(t *testing.T, driver string, c *redistest.Cluster) drivers.Driver {
	d, shut, err := clusterDrivers[driver](c.Addrs())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(shut)
	return d
}

// Slots move and masters fail under load. Nobody waits for ever, and tokens grow.
func TestCluster(t *testing.T) {
	moves, names := scale(t, clusterEnv, 1, strconv.Atoi), slices.Sorted(maps.Keys(clusterDrivers))
	if moves == 1 {
		names = short.Part(t, 1, names)
	}
	failovers := moves / 2
	text := gapsHead
	for _, name := range names {
		t.Run(name, func(t *testing.T) { text += clusterGaps(t, name, moves, failovers) })
	}
	if failovers > 0 {
		text += "\n" + costs(t, names)
	}
	t.Log(redistest.Version(redistest.Binary(t)) + "\n\n" + text)
}

// clusterGaps lets slots move and masters fail under one driver. It returns the lines of the report.
func clusterGaps(t *testing.T, driver string, moves, failovers int) (rows string) {
	b := newTestbed(t, 0, kind{clustered: true, replicated: true,
		args: append([]string{"--cluster-replica-validity-factor", "0"}, hasty...)}, rand.Uint64(), false)
	ctx, stop := context.WithCancel(t.Context())
	var clients []*locker.Client
	for range 3 {
		clients = append(clients, single.New(onCluster(t, driver, b.cluster)))
	}
	w := newLoad(ctx, t, driver, 12, 1, 4*time.Second, clients...)
	all := make([]int, len(w.locks))
	for i := range all {
		all[i] = i
	}
	w.recovers(w.locks)
	loads := []*load{w}
	// one says which lock is hit, and with others which locks have the same master.
	one := func(i int, others bool) (hit []int) {
		hit = []int{i % len(all)}
		b.keys = []string{w.locks[hit[0]].key}
		if others {
			master := b.cluster.Owner(b, b.slot())
			hit = slices.DeleteFunc(slices.Clone(all), func(i int) bool {
				return b.cluster.Owner(b, b.cluster.Slot(b, prefix+w.locks[i].key)) != master
			})
		}
		return hit
	}
	rows += underLoads(loads, "a slot migrates", moves, func(i int) (hit []int) {
		hit = one(i, false)
		m := b.migrate(b.slot())
		for range 5 {
			pause(0, 20*time.Millisecond)
			m.Key()
		}
		m.Finish()
		return hit
	})
	rows += underLoads(loads, "CLUSTER FAILOVER", failovers/2, func(i int) (hit []int) {
		hit = one(i, true)
		b.takesOver(func(_, next *redistest.Server) { b.cluster.Failover(b, next) }, nil)
		return hit
	})
	rows += underLoads(loads, "the master is killed", failovers-failovers/2, func(i int) (hit []int) {
		hit = one(i, true)
		b.takesOver(func(old, _ *redistest.Server) { old.Kill() }, func(old, _ *redistest.Server) {
			w.recovers(w.some(hit))
			old.Restart()
		})
		return hit
	})
	stop()
	w.running.Wait()
	for _, c := range clients {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%s: %d acquisitions", driver, w.taken.Load())
	return rows
}
