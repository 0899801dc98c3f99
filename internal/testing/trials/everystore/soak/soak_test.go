package soak

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	_ "github.com/golocker/locker/backends/etcdlock"
	_ "github.com/golocker/locker/backends/natslock"
	_ "github.com/golocker/locker/drivers/all"
	_ "github.com/golocker/locker/drivers/valkeydriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
)

// The test binary is also the program of the workers.
func TestMain(m *testing.M) {
	if os.Getenv(planEnv) != "" {
		workHere()
		return
	}
	goleak.VerifyTestMain(m, redistest.Lingering()...)
}

const (
	// forEnv is how long each store is tried, such as 10m. Without it, one store is, for seconds.
	forEnv = "LOCKER_SOAK"
	// onlyEnv selects stores by a part of their names.
	onlyEnv = "LOCKER_SOAK_ONLY"
)

// onStores calls f for each store that several processes can have, and for more of them, or for one. So many of them
// run at once.
func onStores(t *testing.T, beside int, all bool, f func(tr *trial), more ...deployment.Deployment) {
	guarded, gate := deployment.Guarded(ttl), make(chan struct{}, beside)
	var running sync.WaitGroup
	for _, d := range slices.Concat(deployment.All, []deployment.Deployment{guarded}, more) {
		if !strings.Contains(d.Name, os.Getenv(onlyEnv)) || !all && d.Name != "single, goredis" {
			continue
		}
		gate <- struct{}{}
		running.Go(func() {
			defer func() { <-gate }()
			t.Run(d.Name, func(t *testing.T) {
				tr := newTrial(t, d)
				tr.forgets = d.Name == guarded.Name
				f(tr)
			})
		})
	}
	running.Wait()
}

// Whatever happens to processes, servers and networks, no two hold a lock at once, tokens grow, certificates are true,
// each call returns, and nothing is left behind.
func TestSoak(t *testing.T) {
	duration, all := 4*time.Second, os.Getenv(forEnv)
	if all != "" {
		var err error
		if duration, err = time.ParseDuration(all); err != nil {
			t.Fatal(err)
		}
	}
	onStores(t, 1, all != "", func(tr *trial) {
		tr.begin(5, plan{Work: ofLocks})
		end := time.Now().Add(duration)
		tr.disturb(func() bool { return !time.Now().Before(end) })
		tr.end()
		tr.lockEach()
		tr.verdict()
		all := tr.judge.count(func(*span) bool { return true })
		relied := tr.judge.count(func(s *span) bool { return s.last > 0 })
		certificates := tr.judge.count(func(s *span) bool { return s.certificate > 0 })
		handed := tr.judge.handed()
		tr.Logf("%d acquisitions, %d of them within a process, %d relied on, %d certificates, %d processes in %v; %v",
			all, handed, relied, certificates, tr.number, duration, tr.faults)
		if handed*50 < relied {
			tr.Errorf("only %d of %d locks were handed over within a process", handed, relied)
		}
		if relied < 10 {
			tr.Errorf("only %d locks were relied on", relied)
		}
	})
}

// A leader stands still, and goes on, while holders hear nothing. Other faults come in between. No two hold a lock at
// once. This takes minutes, so it is tried only if the variable says for how long.
func TestLeaderStopsAndGoesOn(t *testing.T) {
	duration, err := time.ParseDuration(os.Getenv(forEnv))
	if err != nil {
		return
	}
	for _, d := range deployment.All {
		if d.Name != "etcd, 3 members" { // the only store here whose members elect a leader
			continue
		}
		tr := newTrial(t, d)
		tr.begin(5, plan{Work: ofHolds})
		pauses := 0
		for end := time.Now().Add(duration); time.Now().Before(end) && !tr.judge.found(); pauses++ {
			<-time.After(2 * holdTTL) // until each key is held by somebody who has renewed it
			tr.leaderStops(holdTTL + rand.N(2*holdTTL))
			if rand.IntN(3) == 0 {
				tr.fault()
			}
			tr.judge.overdue(limit + slack)
		}
		tr.end()
		tr.verdict()
		relied := tr.judge.count(func(s *span) bool { return s.last > 0 })
		tr.Logf("%d locks were relied on, the leader stopped %d times in %v; %v", relied, pauses, duration, tr.faults)
		if relied < 10 {
			tr.Errorf("only %d locks were relied on", relied)
		}
	}
}

// lockEach locks each key, after all processes have ended.
func (tr *trial) lockEach() {
	l := tr.open()
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(tr.Context(), ttl+limit)
	defer cancel()
	all, err := locker.LockAll(ctx, l, keys)
	if err != nil {
		tr.Errorf("a lock was left behind: %v", err)
		return
	}
	if err := all.Unlock(ctx); err != nil {
		tr.Error(err)
	}
}
