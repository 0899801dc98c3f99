package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/etcdtest"
	"github.com/golocker/locker/memory"
)

// client makes a Client of the store, which is closed with the test.
func (s *store) client() *locker.Client {
	c := locker.NewClient(s.open())
	s.t.Cleanup(func() { s.must(c.Close()) })
	return c
}

func lock(t *testing.T, l locker.Locker, key string, opts ...locker.Option) locker.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lease, err := l.Lock(ctx, key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// unlock unlocks lease. On a busy machine etcd may not answer within the second that Unlock waits, so it is repeated.
func unlock(t testing.TB, lease locker.Lease) {
	t.Helper()
	until(t, "the lease is unlocked", func() bool {
		err := lease.Unlock(t.Context())
		if err != nil && !errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, locker.ErrUnlocked) {
			t.Fatal(err)
		}
		return !errors.Is(err, locker.ErrUnavailable)
	})
}

// until waits until cond is true.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// The tests of this file share a member.
func TestEtcd(t *testing.T) {
	shared := etcdtest.Start(t)
	for name, test := range map[string]func(t *testing.T, s *store){
		"locks and etcd's mutexes exclude each other":   excludesMutexes,
		"a conditional transaction needs the lock":      conditions,
		"a waiter whose entry is gone queues again":     queuesAgain,
		"a waiter that loses its place goes to the end": losesItsPlace,
		"a waiter that has died delays nobody long":     deadWaiter,
		"many keys in one step":                         manyKeys,
		"a loss is noticed at once":                     noticesLosses,
		"a client of the program stays open":            borrows,
		"a loss is noticed after a compaction":          noticesLossAfterCompaction,
		"an observer is told of each change":            tellsObservers,
		"an observer is told after a loss":              tellsAfterLoss,
		"a client with a namespace is refused":          refusesNamespaces,
		"a connection is swallowed":                     survivesSwallowing,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newStore(t, shared))
		})
	}
}

func excludesMutexes(t *testing.T, s *store) {
	l := s.client()
	session, err := concurrency.NewSession(s.direct, concurrency.WithTTL(60))
	s.must(err)
	t.Cleanup(func() { s.must(session.Close()) })
	m := concurrency.NewMutex(session, s.prefix+"k")
	s.must(m.Lock(t.Context()))
	if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
		t.Errorf("TryLock while a mutex is locked: expected ErrHeld, seen %v", err)
	}
	result := make(chan locker.Lease)
	go func() { result <- lock(t, l, "k") }()
	until(t, "the lock is waited for", func() bool { return len(s.left()) == 2 })
	s.must(m.Unlock(t.Context()))
	lease := <-result
	if first := m.Header().Revision; lease.Fence() <= uint64(first) {
		t.Errorf("expected a token above the mutex's revision %d, seen %d", first, lease.Fence())
	}
	if err := m.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
		t.Errorf("TryLock of the mutex while the lock is held: expected ErrLocked, seen %v", err)
	}
	unlock(t, lease)
	s.must(m.TryLock(t.Context()))
	s.must(m.Unlock(t.Context()))
}

// A client whose interfaces are wrapped would be used without the wrappers by some requests. The namespace as a part of
// the prefix has the effect that the program wants.
func refusesNamespaces(t *testing.T, s *store) {
	const ns = "tenant/"
	for what, wrap := range map[string]func(c *clientv3.Client){
		"KV":      func(c *clientv3.Client) { c.KV = namespace.NewKV(c.KV, ns) },
		"Lease":   func(c *clientv3.Client) { c.Lease = namespace.NewLease(c.Lease, ns) },
		"Watcher": func(c *clientv3.Client) { c.Watcher = struct{ clientv3.Watcher }{c.Watcher} },
	} {
		c := connect(t, clientv3.Config{Endpoints: []string{s.member.Addr()}})
		wrap(c)
		l := etcdlock.New(c, etcdlock.Prefix(s.prefix))
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := l.TryLock(ctx, "k")
		_, waited := l.Lock(ctx, "k")
		_, inspected := l.Inspect(t.Context(), "k")
		w, _ := locker.As[inspect.Watcher](l)
		_, watched := w.Watch("k", func() {})
		for _, err := range []error{err, waited, inspected, watched} {
			if !errors.Is(err, locker.ErrInvalid) || !strings.Contains(err.Error(), "prefix") {
				t.Errorf("%s is wrapped: expected ErrInvalid and what to do, seen %v", what, err)
			}
		}
	}
	if left := s.left(); len(left) > 0 {
		t.Errorf("refused calls have left %q", left)
	}

	c := connect(t, clientv3.Config{Endpoints: []string{s.member.Addr()}})
	c.KV, c.Lease = namespace.NewKV(c.KV, s.prefix+ns), namespace.NewLease(c.Lease, s.prefix+ns)
	c.Watcher = namespace.NewWatcher(c.Watcher, s.prefix+ns)
	session, err := concurrency.NewSession(c, concurrency.WithTTL(60))
	s.must(err)
	t.Cleanup(func() { s.must(session.Close()) })
	l := etcdlock.New(s.direct, etcdlock.Prefix(s.prefix+ns+"locks/"))
	defer l.Close()
	lease := lock(t, l, "k")
	m := concurrency.NewMutex(session, "locks/k")
	if err := m.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
		t.Errorf("TryLock of a mutex in the namespace while the lock is held: expected ErrLocked, seen %v", err)
	}
	unlock(t, lease)
	s.must(m.TryLock(t.Context()))
	s.must(m.Unlock(t.Context()))
}

// Nothing comes over the connection any more, and nobody closes it. The renewals notice that, and make another one. The
// TTL is below the eleven seconds of gRPC's keep-alive.
func survivesSwallowing(t *testing.T, s *store) {
	l := s.client()
	lease := lock(t, l, "k", locker.TTL(8*time.Second))
	granted := lease.Until()
	s.relay.Swallow()
	until(t, "the lock is renewed", func() bool {
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
		return lease.Until().After(granted)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	other, err := l.TryLock(ctx, "other")
	s.must(err)
	unlock(t, other)
	unlock(t, lease)
}

func conditions(t *testing.T, s *store) {
	l := s.client()
	write := func(condition []clientv3.Cmp) bool {
		t.Helper()
		resp, err := s.direct.Txn(t.Context()).If(condition...).Then(clientv3.OpPut(s.prefix+"result", "x")).Commit()
		s.must(err)
		return resp.Succeeded
	}
	for _, lease := range []locker.Lease{
		lock(t, l, "k", locker.NoRenewal()),
		func() locker.Lease {
			a, err := locker.LockAll(t.Context(), l, []string{"a", "b"})
			s.must(err)
			return a
		}(),
	} {
		condition, err := etcdlock.Condition(lease)
		s.must(err)
		if !write(condition) {
			t.Error("a transaction under the lock: expected it to succeed")
		}
		s.must(lease.Extend(t.Context()))
		if !write(condition) {
			t.Error("a transaction after an extension: expected it to succeed")
		}
		key := "k"
		if _, many := lease.(*locker.AllLease); many {
			key = "b" // one of them is enough
		}
		_, err = l.ForceRelease(t.Context(), key, "")
		s.must(err)
		if write(condition) {
			t.Error("a transaction after the lock was taken away: expected it to fail")
		}
		_ = lease.Unlock(t.Context())
		if _, err := etcdlock.Condition(lease); !errors.Is(err, locker.ErrUnlocked) && !errors.Is(err, locker.ErrLost) {
			t.Errorf("Condition of a lease that has ended: expected ErrUnlocked or ErrLost, seen %v", err)
		}
	}
	kept := lock(t, l, "kept", locker.MinHold(time.Minute))
	condition, err := etcdlock.Condition(kept)
	s.must(err)
	unlock(t, kept)
	if write(condition) {
		t.Error("a transaction after a release that keeps the lock taken: expected it to fail")
	}
	other := lock(t, memory.New(), "k")
	if _, err := etcdlock.Condition(other); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Condition of another store's lease: expected ErrUnsupported, seen %v", err)
	}
}

func manyKeys(t *testing.T, s *store) {
	l := s.client()
	held := lock(t, l, "b")
	var about *locker.Error
	if _, err := locker.TryLockAll(t.Context(), l, []string{"a", "b", "c"}); !errors.As(err, &about) ||
		about.Key != "b" || !errors.Is(err, locker.ErrHeld) {
		t.Errorf("one of three is held: expected ErrHeld about b, seen %v", err)
	}
	unlock(t, held)
	until(t, "the store is empty", func() bool { return len(s.left()) == 0 })
	all, err := locker.TryLockAll(t.Context(), l, []string{"a", "b", "c"})
	s.must(err)
	if all.FenceOf("a") != all.FenceOf("c") {
		t.Errorf("expected one revision, seen %d and %d", all.FenceOf("a"), all.FenceOf("c"))
	}
	unlock(t, all)
	keys := make([]string, 200) // more than etcd takes in one transaction
	for i := range keys {
		keys[i] = string(rune('A' + i))
	}
	all, err = locker.TryLockAll(t.Context(), l, keys)
	s.must(err)
	unlock(t, all)
}

// noticesLosses also cuts the connection, so that the watches have to begin anew.
func noticesLosses(t *testing.T, s *store) {
	l := s.client()
	leases := map[string]locker.Lease{}
	for _, key := range []string{"early", "late", "cut", "kept"} {
		leases[key] = lock(t, l, key, locker.TTL(time.Hour))
	}
	lost := func(key string) {
		t.Helper()
		s.delete(key)
		select {
		case <-leases[key].Done():
		case <-time.After(time.Minute):
			t.Errorf("%s: the lease goes on for a minute after its entry was deleted", key)
		}
		var why *locker.LostError
		if err := leases[key].Err(); !errors.As(err, &why) || why.Reason != locker.LostGone {
			t.Errorf("%s: expected the reason %q, seen %v", key, locker.LostGone, err)
		}
	}
	lost("early")
	lost("late") // its watch is active now
	s.relay.Cut()
	lost("cut")
	s.must(leases["kept"].Extend(t.Context(), locker.TTL(2*time.Hour))) // writes the entry again
	s.must(leases["kept"].Err())
	unlock(t, leases["kept"])
}

// noticesLossAfterCompaction cuts the connection when the revision from which on the entry is watched is compacted. The
// member is another one, because a compaction ends watches of the other tests, too.
func noticesLossAfterCompaction(t *testing.T, _ *store) {
	s := newStore(t, etcdtest.Start(t))
	lease := lock(t, s.client(), "k", locker.TTL(time.Hour))
	_, err := s.direct.Put(t.Context(), "later", "") // the watch begins with this revision
	s.must(err)
	later, err := s.direct.Put(t.Context(), "later", "")
	s.must(err)
	_, err = s.direct.Compact(t.Context(), later.Header.Revision)
	s.must(err)
	s.relay.Cut()
	s.delete("k")
	select {
	case <-lease.Done():
	case <-time.After(time.Minute):
		t.Error("the lease goes on for a minute after its entry was deleted")
	}
}

func borrows(t *testing.T, s *store) {
	l := etcdlock.New(s.direct, etcdlock.Prefix(s.prefix))
	unlock(t, lock(t, l, "k"))
	s.must(l.Close())
	_, err := s.direct.Get(t.Context(), "k")
	s.must(err)
}
