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
	g := newGoal(t, forEnv, goal{time: 4 * time.Second})
	onStores(t, 1, g.all, func(tr *trial) {
		relied, handed := tr.soak(5, ofLocks, g)
		if handed*50 < relied {
			tr.Errorf("only %d of %d locks were handed over within a process", handed, relied)
		}
	})
}

// soak lets n processes contend until the goal is reached. It returns how many locks were relied on, and how many of
// all were handed over within a process.
func (tr *trial) soak(n int, of work, g goal) (relied, handed int) {
	tr.Helper()
	began := time.Now()
	tr.begin(n, plan{Work: of, Mixed: 10})
	tr.disturb(tr.until(g))
	tr.end()
	took := time.Since(began)
	tr.lockEach()
	tr.verdict()
	relied, handed = tr.judge.count(func(s *span) bool { return s.last > 0 }), tr.judge.handed()
	tr.Logf("%d acquisitions, %d of them within a process, %d relied on, %d certificates, %d processes in %v; %v; %v",
		tr.judge.count(func(*span) bool { return true }), handed, relied,
		tr.judge.count(func(s *span) bool { return s.certificate > 0 }), tr.number, took.Round(time.Second), tr.faults,
		tr.store.Mishaps)
	if of != ofLocks {
		tr.report(began, took)
	}
	if relied < 10 {
		tr.Errorf("only %d locks were relied on", relied)
	}
	return relied, handed
}

// A leader stands still, and goes on, while holders hear nothing. Other faults come in between. No two hold a lock at
// once. This takes minutes, so it is tried only if the variable says for how long.
func TestLeaderStopsAndGoesOn(t *testing.T) {
	g := newGoal(t, forEnv, goal{})
	if g.time == 0 {
		return
	}
	for _, d := range deployment.All {
		if d.Name != "etcd, 3 members" { // the only store here whose members elect a leader
			continue
		}
		tr := newTrial(t, d)
		tr.begin(5, plan{Work: ofHolds})
		pauses := 0
		for end := time.Now().Add(g.time); time.Now().Before(end) && !tr.judge.found(); pauses++ {
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
		tr.Logf("%d locks were relied on, the leader stopped %d times in %v; %v", relied, pauses, g.time, tr.faults)
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
