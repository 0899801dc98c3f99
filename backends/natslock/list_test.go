package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/natslock"
	"github.com/golocker/locker/internal/testing/natstest"
)

// held acquires n locks.
func held(t *testing.T, l locker.Locker, n int) (leases []locker.Lease) {
	t.Helper()
	for i := range n {
		lease, err := l.TryLock(t.Context(), fmt.Sprint("k", i), locker.TTL(time.Minute), locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	return leases
}

// A renewal moves a lock behind all others.
func TestListingHasWhatIsRenewedMeanwhile(t *testing.T) {
	t.Parallel()
	l := natslock.New(start(t).js)
	defer l.Close()
	leases, seen := held(t, l, 250), map[string]bool{}
	for found, err := range l.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if len(seen) == 0 {
			for _, lease := range leases[100:] {
				if err := lease.Extend(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		seen[found.Key] = true
	}
	if len(seen) != len(leases) {
		t.Errorf("%d of %d locks are listed, which were held all the time", len(seen), len(leases))
	}
}

// The consumer of a listing may be with a follower, which still has a lock that is free. Here it has sent all locks
// before they are released, as such a follower would. One server alone has nobody else to ask, and is not asked again.
func TestListingOfAClusterAsksTheLeader(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.within("the bucket", func(ctx context.Context) error {
		_, err := c.store().PutFree(ctx, "begun", time.Second)
		if errors.Is(err, natslock.ErrOther) {
			return nil
		}
		return err
	})
	for _, servers := range []struct {
		js           jetstream.JetStream
		n, questions int
	}{{start(t).js, 1, 0}, {c.js, 3, 5}} {
		l := natslock.New(servers.js, natslock.Replicas(servers.n))
		leases, seen := held(t, l, 5), map[string]bool{}
		questions, err := servers.js.Conn().SubscribeSync("$JS.API.STREAM.MSG.GET.KV_locker")
		if err != nil {
			t.Fatal(err)
		}
		for found, err := range l.List(t.Context(), "k") {
			if err != nil {
				t.Fatal(err)
			}
			if len(seen) == 0 {
				if err := leases[4].Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			seen[found.Key] = true
		}
		if clustered := servers.n > 1; seen["k4"] == clustered || len(seen) < 4 {
			t.Errorf("of %d servers: %v; the lock k4 was released before it was shown", servers.n, seen)
		}
		if err := servers.js.Conn().Flush(); err != nil {
			t.Fatal(err)
		}
		if n, _, err := questions.Pending(); n != servers.questions || err != nil {
			t.Errorf("%d questions about locks to %d servers, want %d, %v", n, servers.n, servers.questions, err)
		}
		_ = l.Close()
	}
}

// A listing of which the server has sent something that did not arrive is not complete.
func TestListingNoticesWhatIsLost(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"k5", "k199"} { // in the middle of a page, and the last one
		s := start(t)
		l := natslock.New(s.js, natslock.Timeout(time.Second))
		held(t, l, 200)
		restore := s.LoseMessages(natslock.NewBackend(s.js).Subject(lost))
		var err error
		for _, err = range l.List(t.Context(), "") {
		}
		if !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("a listing without %s: %v", lost, err)
		}
		restore()
		_ = l.Close()
	}
}

// A listing leaves nothing behind, and needs the rights that the documentation names.
func TestListingNeedsTheseRights(t *testing.T) {
	t.Parallel()
	s := natstest.StartConfigured(t, `
accounts {
  SYS { users: [{user: sys, password: sys}] }
  APP {
    jetstream: enabled
    users: [{user: admin, password: p}, {user: locks, password: p, permissions: {
      publish: [
        "$KV.locker.>", "$JS.API.STREAM.INFO.KV_locker", "$JS.API.STREAM.MSG.GET.KV_locker"
        "$JS.API.CONSUMER.*.KV_locker.>", "$JS.API.CONSUMER.MSG.NEXT.KV_locker.>"
      ]
      subscribe: ["locker.v2.locker.>", "_INBOX.>"]
    }}]
  }
}
system_account: SYS
`)
	admin := connect(t, "nats://admin:p@"+s.Addr())
	l := natslock.New(admin)
	defer l.Close()
	held(t, l, 3)
	user := natslock.New(connect(t, "nats://locks:p@"+s.Addr()))
	n := 0
	for _, err := range user.List(t.Context(), "k") {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 3 {
		t.Errorf("%d locks are listed, want 3", n)
	}
	if err := user.Close(); err != nil {
		t.Error(err)
	}
	stream, err := admin.Stream(t.Context(), "KV_locker")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := stream.Info(t.Context()); err != nil || info.State.Consumers != 0 {
		t.Errorf("%d consumers are left behind, %v", info.State.Consumers, err)
	}
}
