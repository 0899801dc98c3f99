package lockkube_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockkube"
)

// managed is a manager, which needs no API server as long as it has no controllers.
type managed struct {
	lock *lockkube.Lock
	stop context.CancelFunc
	over chan error // what Start has returned
}

// manage starts a manager, whose work is to lead. It ends on a loss.
func (w *world) manage(identity string) *managed {
	w.Helper()
	m := &managed{lock: w.lock(w.client(), identity), over: make(chan error, 1)}
	mgr, err := manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, manager.Options{
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: m.lock,
		LeaderElectionReleaseOnCancel:       true,
		Metrics:                             metrics.Options{BindAddress: "0"},
	})
	if err != nil {
		w.Fatal(err)
	}
	for _, r := range []manager.RunnableFunc{m.lock.AwaitLoss, func(ctx context.Context) error {
		w.began(identity)
		defer w.ended(identity)
		<-ctx.Done()
		return nil
	}} {
		if err := mgr.Add(r); err != nil {
			w.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(w.Context())
	m.stop = cancel
	go func() { m.over <- mgr.Start(ctx) }()
	time.Sleep(time.Second)
	synctest.Wait()
	return m
}

func TestManagers(t *testing.T) {
	for what, tt := range map[string]struct {
		end  func(w *world, leader *managed)
		err  error
		next time.Duration // until another one leads
	}{
		"the leader is stopped": {func(_ *world, leader *managed) { leader.stop() }, nil, defaults.slowest()},
		"the lock is lost": {func(w *world, _ *managed) {
			w.must(w.store.Lose(w.Context(), key), nil)
		}, locker.ErrLost, defaults.slowest()},
	} {
		t.Run(what, func(t *testing.T) {
			inVirtualTime(t, func(w *world) {
				a := w.manage("a")
				b := w.manage("b")
				time.Sleep(time.Minute)
				w.leads("a")
				ended := time.Now()
				tt.end(w, a)
				w.must(<-a.over, tt.err)
				if took := time.Since(ended); took > time.Second {
					t.Errorf("Start has returned after %v", took)
				}
				time.Sleep(tt.next)
				w.leads("b")
				b.stop()
				w.must(<-b.over, nil)
			})
		})
	}
}

// Without a store, the leader stops before the end of its lease, and the other manager leads when the store is back.
func TestManagersInAnOutage(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		a := w.manage("a")
		b := w.manage("b")
		time.Sleep(time.Minute)
		w.leads("a")
		lease, _ := a.lock.Lease()
		until := lease.Until()
		w.store.Down()
		if err := <-a.over; err == nil {
			t.Error("Start has returned nil")
		}
		if left := time.Until(until); left < 0 {
			t.Errorf("the manager has ended %v after its lease", -left)
		}
		w.leads("")
		w.store.Up()
		time.Sleep(defaults.lease + defaults.slowest())
		w.leads("b")
		b.stop()
		w.must(<-b.over, nil)
	})
}
