package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/internal/testing/etcdtest"
	"github.com/golocker/locker/lockertrace"
)

// The tests of this file share a member.
func TestTokens(t *testing.T) {
	shared := etcdtest.Start(t)
	for name, test := range map[string]func(t *testing.T, s *store){
		"begin at the clock":                  beginAtTheClock,
		"are raised":                          areRaised,
		"are raised for earlier waiters":      areRaisedForEarlierWaiters,
		"are raised while locks are acquired": areRaisedMeanwhile,
		"go on if the record is deleted":      goOnWithoutRecord,
		"are refused if they are not exact":   areExact,
		"a condition ends the hand-overs":     conditionEndsHandovers,
		"have a version":                      haveVersion,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newStore(t, shared))
		})
	}
}

// acquire acquires a lock that is free, for several tokens.
func (s *store) acquire(b *etcdlock.Backend, key string, fences int) (backend.Request, backend.Grant) {
	s.t.Helper()
	req := backend.Request{Key: key, Token: backend.NewToken(), TTL: 10 * time.Second, Fences: fences}
	g, err := b.Acquire(s.t.Context(), req)
	s.must(err)
	req.Fence, req.Private = g.Fence, g.Private
	return req, g
}

func (s *store) store() *etcdlock.Backend {
	b := s.open()
	s.t.Cleanup(func() { s.must(b.Close()) })
	return b
}

func beginAtTheClock(t *testing.T, s *store) {
	a, b := s.store(), s.store()
	before := uint64(time.Now().UnixMicro())
	req, first := s.acquire(a, "k", 1)
	if now := uint64(time.Now().UnixMicro()); first.Fence < before || first.Fence > now || first.Fences != 1 {
		t.Errorf("expected one token from %d to %d, seen %d from %d on", before, now, first.Fences, first.Fence)
	}
	s.must(a.Release(t.Context(), req))
	_, second := s.acquire(b, "k", backend.MaxFences)
	if n := second.Fence - first.Fence; n == 0 || n%backend.MaxFences != 0 || second.Fences != backend.MaxFences {
		t.Errorf("expected a block of tokens, seen %d from %d on after %d", second.Fences, second.Fence, first.Fence)
	}
}

// Programs that renew leases of holders read the value as a number. They go on with it until another program has
// acquired a lock, and are refused from then on. Whatever a later version writes, this one refuses.
func haveVersion(t *testing.T, s *store) {
	b, name := s.store(), s.prefix+etcdlock.TokensKey
	const old = 1_700_000_000_000_000
	put, err := s.direct.Put(t.Context(), name, fmt.Sprint(old))
	s.must(err)
	_, first := s.acquire(b, "a", 1)
	_, second := s.acquire(b, "b", 1)
	if least := uint64(old); first.Fence <= least || second.Fence <= first.Fence {
		t.Errorf("expected growing tokens above %d, seen %d and %d", least, first.Fence, second.Fence)
	}
	record, err := s.direct.Get(t.Context(), name)
	s.must(err)
	kv := record.Kvs[0]
	if want := fmt.Sprint("v2 ", old); string(kv.Value) != want || kv.CreateRevision != put.Header.Revision {
		t.Errorf("expected %q of revision %d, seen %+v", want, put.Header.Revision, kv)
	}
	_, err = s.direct.Put(t.Context(), name, fmt.Sprint("v3 ", old))
	s.must(err)
	req := backend.Request{Key: "c", Token: backend.NewToken(), TTL: 10 * time.Second}
	_, err = b.Acquire(t.Context(), req)
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "v3") {
		t.Errorf("Acquire: expected to be refused because of v3, seen %v", err)
	}
	if err := b.RaiseFences(t.Context(), 2*old); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("RaiseFences: expected to be refused because of v3, seen %v", err)
	}
}

func areRaised(t *testing.T, s *store) {
	a, b := s.store(), s.store()
	held, g := s.acquire(a, "k", 1)
	waits := locker.NewClient(s.open())
	defer waits.Close()
	next := make(chan locker.Lease)
	go func() { next <- lock(t, waits, "k") }()
	until(t, "the lock is waited for", func() bool { return len(s.left()) == 2 })
	past := g.Fence + 1_000_000_000
	s.must(b.RaiseFences(t.Context(), past))
	_, other := s.acquire(a, "other", 1)
	if other.Fence <= past || other.Fence > past+1_000_000_000 {
		t.Errorf("expected a token just past %d, seen %d", past, other.Fence)
	}
	for range 2 {
		s.must(a.Extend(t.Context(), held))
		s.must(a.Verify(t.Context(), held))
	}
	s.must(a.Release(t.Context(), held))
	lease := <-next
	if lease.Fence() <= past {
		t.Errorf("a waiter that came before the raise: expected a token past %d, seen %d", past, lease.Fence())
	}
	unlock(t, lease)
	for _, p := range []uint64{0, past - 1, past} {
		resp, err := s.direct.Get(t.Context(), s.prefix+etcdlock.TokensKey)
		s.must(err)
		s.must(b.RaiseFences(t.Context(), p))
		again, err := s.direct.Get(t.Context(), s.prefix+etcdlock.TokensKey)
		s.must(err)
		if string(again.Kvs[0].Value) != string(resp.Kvs[0].Value) {
			t.Errorf("tokens are past %d already, and RaiseFences has changed %s to %s", p, resp.Kvs[0].Value,
				again.Kvs[0].Value)
		}
	}
}

// A waiter behind a mutex of etcd's client, or whose record somebody has deleted, is older than the record.
func areRaisedForEarlierWaiters(t *testing.T, s *store) {
	session, err := concurrency.NewSession(s.direct)
	s.must(err)
	for round := range 2 {
		m := concurrency.NewMutex(session, s.prefix+"k")
		s.must(m.Lock(t.Context()))
		next := make(chan locker.Lease)
		l := s.client()
		go func() { next <- lock(t, l, "k") }()
		until(t, "the lock is waited for", func() bool { return len(s.left()) == 2 })
		if round == 1 {
			_, err := s.direct.Delete(t.Context(), s.prefix+etcdlock.TokensKey)
			s.must(err)
		}
		for range 10 {
			_, err := s.direct.Put(t.Context(), "another program", "")
			s.must(err)
		}
		past := uint64(time.Now().Add(time.Hour).UnixMicro())
		s.must(s.store().RaiseFences(t.Context(), past))
		s.must(m.Unlock(t.Context()))
		lease := <-next
		if lease.Fence() <= past {
			t.Errorf("expected a token past %d, seen %d", past, lease.Fence())
		}
		unlock(t, lease)
	}
}

// Two Clients acquire while others raise the tokens: tokens grow, and those that are asked for after a raise are past
// it. A lock that is handed over within a Client was granted before.
func areRaisedMeanwhile(t *testing.T, s *store) {
	var last, raised atomic.Uint64
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	for range 2 {
		l := s.client()
		for range 2 {
			all.Go(func() {
				for ctx.Err() == nil {
					least := raised.Load()
					lease, err := l.Lock(t.Context(), "k", locker.NoLocalHandover())
					if err != nil {
						t.Error(err)
						return
					}
					if was := last.Swap(lease.Fence()); lease.Fence() <= was || lease.Fence() <= least {
						t.Errorf("token %d after %d, when tokens were raised past %d", lease.Fence(), was, least)
					}
					unlock(t, lease)
				}
			})
		}
		b := s.store()
		all.Go(func() {
			for ctx.Err() == nil {
				past := last.Load() + 500_000
				s.must(b.RaiseFences(t.Context(), past))
				for was := raised.Load(); was < past && !raised.CompareAndSwap(was, past); was = raised.Load() {
				}
				until(t, "a token is past the raise", func() bool { return last.Load() > past || ctx.Err() != nil })
			}
		})
	}
	all.Wait()
}

func goOnWithoutRecord(t *testing.T, s *store) {
	a, b := s.store(), s.store()
	req, first := s.acquire(a, "k", 1)
	waits := s.client()
	next := make(chan locker.Lease)
	go func() { next <- lock(t, waits, "k") }()
	until(t, "the lock is waited for", func() bool { return len(s.left()) == 2 })
	_, err := s.direct.Delete(t.Context(), s.prefix+etcdlock.TokensKey)
	s.must(err)
	s.must(a.Verify(t.Context(), req))
	s.must(a.Release(t.Context(), req))
	lease := <-next
	if lease.Fence() <= first.Fence {
		t.Errorf("a waiter: token %d after %d", lease.Fence(), first.Fence)
	}
	unlock(t, lease)
	_, err = s.direct.Delete(t.Context(), s.prefix+etcdlock.TokensKey)
	s.must(err)
	if _, third := s.acquire(b, "k", 1); third.Fence <= lease.Fence() {
		t.Errorf("token %d after %d", third.Fence, lease.Fence())
	}
}

func areExact(t *testing.T, s *store) {
	b := s.store()
	for _, value := range []string{"text", "", "-1", "9007199254740992", "9007199254740990", "9999999999999999999"} {
		_, err := s.direct.Put(t.Context(), s.prefix+etcdlock.TokensKey, value)
		s.must(err)
		req := backend.Request{Key: "k", Token: backend.NewToken(), TTL: 10 * time.Second}
		if g, err := b.Acquire(t.Context(), req); !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("tokens counted from %q: expected ErrUnavailable, seen %v and token %d", value, err, g.Fence)
		}
		until(t, "the attempt is undone", func() bool { return len(s.left()) == 0 })
	}
	if err := b.RaiseFences(t.Context(), 7); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("RaiseFences of what is no number: expected ErrUnavailable, seen %v", err)
	}
	_, err := s.direct.Put(t.Context(), s.prefix+etcdlock.TokensKey, "0")
	s.must(err)
	const past = 1<<52 - 1
	s.must(b.RaiseFences(t.Context(), past))
	if _, g := s.acquire(b, "k", 1); g.Fence <= past {
		t.Errorf("expected a token past %d, seen %d", past, g.Fence)
	}
}

// All leases of a grant have one entry, so a transaction of the first one would take effect while the second one has
// the lock.
func conditionEndsHandovers(t *testing.T, s *store) {
	l := s.client()
	for _, bound := range []bool{false, true} {
		for try := 1; ; try++ {
			first := lock(t, l, "k")
			var waiting atomic.Int64
			waits := func() <-chan locker.Lease {
				ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { waiting.Add(1) }})
				granted := make(chan locker.Lease)
				go func() {
					lease, err := l.Lock(ctx, "k")
					s.must(err)
					granted <- lease
				}()
				return granted
			}
			second, third := waits(), waits()
			until(t, "both wait", func() bool { return waiting.Load() == 2 })
			unlock(t, first)
			var holder, last locker.Lease
			rest := second
			select {
			case holder = <-second:
				rest = third
			case holder = <-third:
			}
			var condition []clientv3.Cmp
			if bound {
				var err error
				condition, err = etcdlock.Condition(holder)
				s.must(err)
			}
			unlock(t, holder)
			last = <-rest
			shared := last.Token() == holder.Token()
			passes := false
			if bound {
				resp, err := s.direct.Txn(t.Context()).If(condition...).Then(clientv3.OpGet("x")).Commit()
				s.must(err)
				passes = resp.Succeeded
			}
			unlock(t, last)
			if bound && (shared || passes) {
				t.Errorf("after Condition: the next lease has the same grant: %v; the transaction passes: %v", shared, passes)
			}
			if bound || shared {
				break
			}
			if try == 20 {
				t.Fatal("no lock was handed over within the Client")
			}
		}
	}
}
