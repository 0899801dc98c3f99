package kuberneteslock_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/kuberneteslock"
	"github.com/golocker/locker/internal/testing/kubetest"
	"github.com/golocker/locker/record"
)

// waits has a new Client wait for a lock that is held. done gets the lease.
func waits(t *testing.T, s *kubetest.Server, key string, poll time.Duration) (done chan locker.Lease) {
	t.Helper()
	waiter := client(t, s, record.Poll(poll))
	done = make(chan locker.Lease, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	go func() {
		lease, err := waiter.Lock(ctx, key, locker.TTL(time.Hour), locker.NoRenewal())
		if err != nil {
			t.Errorf("%s: %v", key, err)
		}
		done <- lease
	}()
	return done
}

func held(t *testing.T, s *kubetest.Server, key string) locker.Lease {
	t.Helper()
	lease, err := client(t, s).TryLock(t.Context(), key, locker.TTL(time.Hour), locker.NoRenewal())
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func unlock(t *testing.T, lease locker.Lease) {
	t.Helper()
	if lease == nil {
		return
	}
	if err := lease.Unlock(context.Background()); err != nil {
		t.Error(err)
	}
}

// until returns when the server has that many watches.
func until(s *kubetest.Server, watches int) {
	for s.Watches() != watches {
		<-time.After(time.Millisecond)
	}
}

// A watch tells of each change. One that has ended begins again.
func TestWatchesBeginAgain(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *kubetest.Server){
		"it ends after a while":  (*kubetest.Server).EndWatches,
		"its version is too old": (*kubetest.Server).Expire,
		"a restart":              (*kubetest.Server).Restart,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kubetest.Start(t)
			store := open(t, s)
			defer store.Close()
			hints := make(chan struct{}, 1)
			live, stop := store.Watch("k", func() {
				select {
				case hints <- struct{}{}:
				default:
				}
			})
			version := ""
			changes := func() { // as renewals are
				t.Helper()
				for !live() {
					<-time.After(time.Millisecond)
				}
				for n := range 3 {
					text := fmt.Appendf(nil, `{"locker":1,"state":"held","owner":"o","token":1,"last":1,"length_ms":10000,`+
						`"nonce":"%s%d"}`, version, n)
					var err error
					if version == "" {
						version, err = store.Create(t.Context(), "k", text)
					} else {
						version, err = store.Replace(t.Context(), "k", version, text)
					}
					if err != nil {
						t.Fatal(err)
					}
					select {
					case <-hints:
					case <-time.After(time.Minute):
						t.Fatal("nothing has told of a change")
					}
				}
			}
			changes()
			end(s)
			for live() {
				<-time.After(time.Millisecond)
			}
			changes()
			stop()
			until(s, 0)
		})
	}
}

// docs/backends/kubernetes.md says what a waiter costs.
func TestRequestsOfAWaiter(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	lease := held(t, s, "k")
	before := s.Requests()
	done := waits(t, s, "k", time.Minute)
	until(s, 1)
	unlock(t, lease)
	unlock(t, <-done)
	now := s.Requests()
	// It looks, and looks again when the watch begins, when the watch has told what there is, and when the lock is free.
	// Some of them may be one. After the third one it pauses, for some seconds with such a Poll.
	if n := now[http.MethodGet] - before[http.MethodGet]; n > 4 || now["WATCH"] != 1 {
		t.Errorf("%d reads and %d watches", n, now["WATCH"])
	}
}

// Without the right to watch, and with enough watches, waiters look at intervals.
func TestWaitersWithoutAWatch(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	forbidden := leaseStatus(http.StatusForbidden, "Forbidden")
	s.Inject(func(r kubetest.Request) kubetest.Fault {
		if r.Method == "WATCH" {
			return kubetest.Fault{Answer: &forbidden}
		}
		return kubetest.Fault{}
	})
	lease := held(t, s, "k")
	done := waits(t, s, "k", 50*time.Millisecond)
	for s.Requests()["WATCH"] == 0 {
		<-time.After(time.Millisecond)
	}
	unlock(t, lease)
	unlock(t, <-done)
}

func TestWatchesAreBounded(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	store := open(t, s)
	defer store.Close()
	var stops []func()
	for i := range kuberneteslock.MaxWatches {
		_, stop := store.Watch(fmt.Sprint(i), func() {})
		stops = append(stops, stop)
	}
	until(s, kuberneteslock.MaxWatches)
	live, stop := store.Watch("more", func() { t.Error("a watch more") })
	if live() {
		t.Error("a watch more is live")
	}
	stop()
	for _, stop := range stops {
		stop()
	}
	until(s, 0)
	var told sync.WaitGroup
	told.Add(1)
	_, stop = store.Watch("more", sync.OnceFunc(told.Done))
	defer stop()
	told.Wait()
}
