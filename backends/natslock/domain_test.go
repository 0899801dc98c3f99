package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/natslock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/natstest"
	"github.com/golocker/locker/lockertrace"
)

// dial returns a connection without JetStream.
func dial(t testing.TB, url string) *natsclient.Conn {
	t.Helper()
	return connect(t, url).Conn()
}

// hubAndLeaf starts servers whose JetStreams know each other.
func hubAndLeaf(t testing.TB) (hub, leaf *natstest.Server) {
	t.Helper()
	hub, leaf = natstest.StartHubAndLeaf(t)
	js, err := jetstream.NewWithDomain(dial(t, leaf.URL()), "hub")
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); ; <-time.After(20 * time.Millisecond) {
		_, err := js.AccountInfo(t.Context())
		if err == nil {
			return hub, leaf
		}
		if time.Now().After(end) {
			t.Fatalf("the leaf does not reach the hub: %v", err)
		}
	}
}

// excludeEachOther checks that two Clients of one bucket, which both can take locks, exclude each other, for locks of
// their own and in one step, and that a waiter is told of a release.
func excludeEachOther(t *testing.T, a, b locker.Locker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	last := uint64(0)
	for n, pair := range [][2]locker.Locker{{a, b}, {b, a}} {
		holder, other := pair[0], pair[1]
		key := func(name string) string { return fmt.Sprint(name, n) }
		lease, err := holder.TryLock(ctx, key("k"), locker.TTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.TryLock(ctx, key("k")); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("%d: the other Client: %v, expected to find the lock held", n, err)
		}
		lister, _ := locker.As[inspect.Lister](other)
		found := 0
		for _, err := range lister.List(ctx, key("k")) {
			if err != nil {
				t.Errorf("%d: the other Client lists: %v", n, err)
			}
			found++
		}
		if found == 0 {
			t.Errorf("%d: the other Client does not list the lock", n)
		}
		if err := errors.Join(lease.Extend(ctx), locker.Verify(ctx, lease)); err != nil {
			t.Error(err)
		}
		all, err := locker.TryLockAll(ctx, holder, []string{key("x"), key("y")}, locker.TTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := locker.TryLockAll(ctx, other, []string{key("x"), key("y")}); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("%d: the other Client: %v, expected to find the locks held", n, err)
		}
		waits := make(chan struct{}, 1000)
		wakes := make(chan lockertrace.WakeReason, 1000)
		done := make(chan locker.Lease, 1)
		go func() {
			defer close(done)
			traced := lockertrace.With(ctx, &lockertrace.Trace{
				Waiting: func(lockertrace.Waiting) { waits <- struct{}{} },
				Woken:   func(w lockertrace.Wake) { wakes <- w.Reason },
			})
			next, err := other.Lock(traced, key("k"), locker.TTL(time.Minute))
			if err != nil {
				t.Errorf("the waiter: %v", err)
				return
			}
			done <- next
		}()
		select {
		case <-waits:
		case <-done:
			t.Fatalf("%d: a waiter was granted the lock while it is held", n)
		}
		told := false
		for !told { // it may be woken by the confirmation of its subscription, too
			select {
			case why := <-wakes:
				told = why == lockertrace.WakeNotify
			case <-ctx.Done():
				t.Fatal("the waiter is not told of anything")
			}
		}
		if err := errors.Join(lease.Unlock(ctx), all.Unlock(ctx)); err != nil {
			t.Error(err)
		}
		next, ok := <-done
		if !ok {
			return
		}
		if next.Fence() <= lease.Fence() || lease.Fence() <= last {
			t.Errorf("%d: tokens %d and %d after %d", n, lease.Fence(), next.Fence(), last)
		}
		last = next.Fence()
		if err := next.Unlock(ctx); err != nil {
			t.Error(err)
		}
	}
}

// inOneStep checks that a batch is not split between two destinations.
func inOneStep(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	b := natslock.NewBackend(js)
	defer b.Close()
	if _, err := b.AcquireMany(t.Context(), two, backend.Choice{}); err != nil {
		t.Errorf("two locks in one step: %v", err)
	}
}

// A program at a leaf node that names the domain of the hub shares the locks of the hub. What it stores does not stay
// in a bucket of the same name at the leaf.
func TestDomainsShareTheirLocks(t *testing.T) {
	t.Parallel()
	hub, leaf := hubAndLeaf(t)
	atHub, err := config.Open(t.Context(), hub.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer atHub.Close()
	atLeaf, err := config.Open(t.Context(), leaf.URL()+"?domain=hub")
	if err != nil {
		t.Fatal(err)
	}
	defer atLeaf.Close()
	excludeEachOther(t, atHub, atLeaf)

	local, err := config.Open(t.Context(), leaf.URL()) // makes a bucket of the same name at the leaf
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	if _, err := local.TryLock(t.Context(), "k0", locker.TTL(time.Minute)); err != nil {
		t.Fatal(err)
	}
	excludeEachOther(t, atHub, atLeaf)
	js, err := jetstream.NewWithAPIPrefix(dial(t, leaf.URL()), "$JS.hub.API") // the same in another way
	if err != nil {
		t.Fatal(err)
	}
	l := natslock.New(js)
	defer l.Close()
	excludeEachOther(t, atHub, l)
	inOneStep(t, js)
}

// An account that imports the bucket of another account with a prefix shares its locks.
func TestAccountsShareTheirLocks(t *testing.T) {
	t.Parallel()
	s := natstest.StartConfigured(t, `
accounts {
  SYS { users: [{user: sys, password: sys}] }
  OWNER {
    users: [{user: owner, password: owner}], jetstream: enabled
    exports: [
      { service: "$JS.API.STREAM.INFO.KV_locker" }, { service: "$JS.API.STREAM.MSG.GET.KV_locker" }
      { service: "$KV.locker.>" }, { stream: "locker.v2.locker.>" }
      { service: "$JS.API.CONSUMER.*.KV_locker.>" }
      { service: "$JS.API.CONSUMER.MSG.NEXT.KV_locker.>", response: stream }
    ]
  }
  GUEST {
    users: [{user: guest, password: guest}], jetstream: enabled
    imports: [
      { service: { account: OWNER, subject: "$JS.API.STREAM.INFO.KV_locker" }, to: "theirs.STREAM.INFO.KV_locker" }
      { service: { account: OWNER, subject: "$JS.API.STREAM.MSG.GET.KV_locker" }
        to: "theirs.STREAM.MSG.GET.KV_locker" }
      { service: { account: OWNER, subject: "$KV.locker.>" }, to: "theirs.$KV.locker.>" }
      { service: { account: OWNER, subject: "$JS.API.CONSUMER.CREATE.KV_locker.>" }
        to: "theirs.CONSUMER.CREATE.KV_locker.>" }
      { service: { account: OWNER, subject: "$JS.API.CONSUMER.DELETE.KV_locker.>" }
        to: "theirs.CONSUMER.DELETE.KV_locker.>" }
      { service: { account: OWNER, subject: "$JS.API.CONSUMER.MSG.NEXT.KV_locker.>" }
        to: "theirs.CONSUMER.MSG.NEXT.KV_locker.>" }
      { stream: { account: OWNER, subject: "locker.v2.locker.>" } }
    ]
  }
}
system_account: SYS
`)
	owner, err := config.Open(t.Context(), "nats://owner:owner@"+s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	if _, err := owner.TryLock(t.Context(), "first"); err != nil { // makes the bucket
		t.Fatal(err)
	}
	js, err := jetstream.NewWithAPIPrefix(dial(t, "nats://guest:guest@"+s.Addr()), "theirs")
	if err != nil {
		t.Fatal(err)
	}
	guest := natslock.New(js)
	defer guest.Close()
	excludeEachOther(t, owner, guest)
	inOneStep(t, js)
}

// Locks of one name, in buckets of one name in two domains, have nothing to do with each other: changes of one wake
// nobody who waits for the other.
func TestBucketsOfOneNameDoNotWakeEachOther(t *testing.T) {
	t.Parallel()
	hub, leaf := hubAndLeaf(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	open := func(url string) *config.Opened {
		l, err := config.Open(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	holder, next, other := open(hub.URL()), open(hub.URL()), open(leaf.URL())
	defer holder.Close()
	defer next.Close()
	defer other.Close()
	lease, err := holder.Lock(ctx, "k", locker.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan *natsclient.Msg, 1000) // what a waiter for this lock is told at the hub
	if _, err := dial(t, hub.URL()).ChanSubscribe("locker.v2.locker.lock=3Ak", heard); err != nil {
		t.Fatal(err)
	}
	attempts := make(chan struct{}, 1000)
	var told atomic.Int64
	done := make(chan error, 1)
	go func() {
		traced := lockertrace.With(ctx, &lockertrace.Trace{
			Attempted: func(lockertrace.Attempt) { attempts <- struct{}{} },
			Woken: func(w lockertrace.Wake) {
				if w.Reason == lockertrace.WakeNotify {
					told.Add(1)
				}
			},
		})
		next, err := next.Lock(traced, "k")
		if err == nil {
			err = next.Unlock(ctx)
		}
		done <- err
	}()
	for told.Load() == 0 { // it is woken when it is told of changes
		<-attempts
	}
	<-attempts
	before := told.Load()
	const changes = 50
	for range changes {
		l, err := other.Lock(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for range changes { // each lock and each release
		<-heard
		<-heard
	}
	if n := told.Load() - before; n > 1 {
		t.Errorf("%d changes in another domain have woken a waiter %d times", changes, n)
	}
	if err := lease.Unlock(ctx); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
