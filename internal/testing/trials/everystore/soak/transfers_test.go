package soak

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
)

// transfersEnv is how many locks are passed on on each store that can do that. Without it, there are few, on one store.
const transfersEnv = "LOCKER_TRANSFERS"

// The locks that are passed on: there are more than are stuck at once because somebody was killed.
const passedOn, transferred = "passed", 20

// A lock that is passed on in a text has one holder at a time, tokens grow, no text works twice, and nothing is left
// for longer than its TTL, whoever of those that pass it on is killed.
func TestTransfers(t *testing.T) {
	g := newGoal(t, transfersEnv, goal{count: 50})
	onStores(t, 1, g.all, func(tr *trial) {
		l := tr.open()
		defer func() { _ = l.Close() }()
		if of, ok := locker.As[backend.Capable](l); !ok || !of.Capabilities().Export {
			tr.Log("this store passes no locks on")
			return
		}
		began := time.Now()
		tr.begin(contenders, plan{Work: ofTransfers, Texts: tr.TempDir()})
		next := 0 // the next fault comes when so many were passed on, because some stores are slow
		for passed, changed := 0, began; (passed < g.count || tr.faults["SIGKILL"] < g.count/10) && !tr.judge.found(); {
			<-time.After(rand.N(100 * time.Millisecond))
			if passed >= next {
				next = passed + rand.IntN(16)
				tr.hit("SIGKILL", rand.IntN(len(tr.all)), nil)
				if rand.IntN(10) == 0 {
					tr.fault()
				}
			}
			tr.judge.overdue(limit + slack)
			if n := tr.judge.passed(); n > passed {
				passed, changed = n, time.Now()
			} else if time.Since(changed) > hangLimit {
				tr.Fatalf("nothing was passed on for %v, after %d", hangLimit, passed)
			}
		}
		for i := range tr.all { // in the middle of what they do
			tr.all[i].kill()
			tr.all[i].heard.Wait()
		}
		tr.free(l)
		tr.verdict()
		tr.Logf("%d locks were passed on, %d relied on, %d processes in %v; %v", tr.judge.passed(),
			tr.judge.count(func(s *span) bool { return s.last > 0 }), tr.number, time.Since(began).Round(time.Second), tr.faults)
	}, deployment.Records...)
}

// free checks that all locks that were passed on are free when their TTL is over. All processes have ended, and those
// that lock them count the TTL of those that they see.
func (tr *trial) free(l locker.Locker) {
	tr.Helper()
	taken := map[string]error{}
	for i := range transferred {
		taken[fmt.Sprint(passedOn, i)] = nil
	}
	for end := time.Now().Add(ttl + slack/4); len(taken) > 0 && time.Now().Before(end); pause() {
		for key := range taken { // it is no queue that gives one lock after the other a TTL of its own
			lease, err := l.TryLock(tr.Context(), key)
			if err == nil {
				err = lease.Unlock(tr.Context())
			}
			if taken[key] = err; err == nil {
				delete(taken, key)
			}
		}
	}
	for key, err := range taken {
		tr.Errorf("%s is still taken: %v", key, err)
	}
}
