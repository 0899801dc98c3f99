package judge

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/audit"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// flawed is a store with a fault. What is nil is that of package memory.
type flawed struct {
	*memory.Backend
	acquire                 func(n uint64) backend.Grant // of the n-th request
	extend, verify, release func() error
	forgets                 bool // it knows nothing of the first client when the second one comes
	places                  bool // it has no groups
	n                       uint64
}

func (b *flawed) Capabilities() backend.Capabilities {
	c := b.Backend.Capabilities()
	c.Groups, c.Kinds = !b.places, !b.places
	return c
}

func (b *flawed) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if b.acquire == nil {
		return b.Backend.Acquire(ctx, req)
	}
	b.n++
	return b.acquire(b.n), nil
}

func (b *flawed) Extend(ctx context.Context, req backend.Request) error {
	if b.extend == nil {
		return b.Backend.Extend(ctx, req)
	}
	return b.extend()
}

func (b *flawed) Verify(ctx context.Context, req backend.Request) error {
	if b.verify == nil {
		return b.Backend.Verify(ctx, req)
	}
	return b.verify()
}

func (b *flawed) Release(ctx context.Context, req backend.Request) error {
	if b.release == nil {
		return b.Backend.Release(ctx, req)
	}
	return b.release()
}

// tardy is a Client that stands still for a while when it loses a lock.
type tardy struct{ locker.Locker }

func (t tardy) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	trace := *lockertrace.From(ctx)
	lost := trace.Lost
	trace.Lost = func(err error) {
		time.Sleep(3 * time.Second)
		lost(err)
	}
	return t.Locker.TryLock(lockertrace.With(context.Background(), &trace), key, opts...)
}

// pausing is a Locker whose calls of Lock take a millisecond more.
type pausing struct{ locker.Locker }

func (p pausing) Unwrap() locker.Locker { return p.Locker }

func (p pausing) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	defer time.Sleep(time.Millisecond)
	return p.Locker.Lock(ctx, key, opts...)
}

// A store with Kinds has the upgradeable lock and its upgrade for a moment, and others read beside a downgraded lock.
func TestUpgradesAndDowngradesAreNoFaults(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		store := memory.NewBackend()
		var files [2]bytes.Buffer
		var clients [2]*rwlock.RWLock
		var ends []func() error
		for i := range files {
			log, client := audit.New(&files[i]), locker.NewClient(store)
			ends = append(ends, client.Close, log.Close)
			l := pausing{locker.Wrap(client, log.Middleware("store"))}
			clients[i] = rwlock.New(locker.Defaults(locker.TTL(time.Second))(l))
		}
		ctx := t.Context()
		for range 3 {
			lease, err := clients[0].Upgradeable().Lock(ctx, "k")
			if err == nil {
				time.Sleep(5 * time.Second) // for renewals, here and below
				lease, err = rwlock.Upgrade(ctx, lease)
			}
			if err == nil {
				time.Sleep(5 * time.Second)
				lease, err = rwlock.Downgrade(ctx, lease)
			}
			if err != nil {
				t.Fatal(err)
			}
			reader, err := clients[1].Shared().TryLock(ctx, "k")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			_, _ = lease.Unlock(ctx), reader.Unlock(ctx)
		}
		for _, end := range ends {
			_ = end()
		}
		logs := New()
		for i := range files {
			if err := logs.Read("log", &files[i]); err != nil {
				t.Fatal(err)
			}
		}
		if _, found := judged(t, logs, Options{Clocks: true}); found != nil {
			t.Error(found)
		}
	})
}

// Each kind of fault is planted in a store or a Client, and is found from the logs of two processes alone.
func TestPlantedFaultsAreFoundFromTheLogsAlone(t *testing.T) {
	yes := func() error { return nil }
	gone := func() error { return &locker.NotHeldError{Reason: locker.LostGone} }
	taken := func() error { return &locker.NotHeldError{Reason: locker.LostTakenOver} }
	grants := func(n uint64) backend.Grant { return backend.Grant{Fence: n} }
	lock := func(t *testing.T, l locker.Locker) locker.Lease {
		t.Helper()
		lease, err := l.TryLock(t.Context(), "k", locker.TTL(10*time.Second), locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		return lease
	}
	both := func(ask func(ctx context.Context, lease locker.Lease) error) func(*testing.T, locker.Locker, locker.Locker) {
		return func(t *testing.T, a, b locker.Locker) {
			first, second := lock(t, a), lock(t, b)
			_ = ask(t.Context(), first)
			_ = second.Unlock(t.Context())
		}
	}
	inTurn := func(t *testing.T, a, b locker.Locker) {
		for _, l := range []locker.Locker{a, b, a} {
			_ = lock(t, l).Unlock(t.Context())
		}
	}
	unlock := func(ctx context.Context, lease locker.Lease) error { return lease.Unlock(ctx) }
	for rule, tt := range map[Rule]struct {
		store  flawed
		use    func(t *testing.T, a, b locker.Locker)
		clocks bool
	}{
		Exclusion: {flawed{acquire: grants, release: yes}, both(unlock), true},
		ReadWrite: {flawed{forgets: true}, func(t *testing.T, a, b locker.Locker) {
			first, second := lock(t, rwlock.New(a).Shared()), lock(t, rwlock.New(b).Exclusive())
			_, _ = first.Unlock(t.Context()), second.Unlock(t.Context())
		}, true},
		"a place of readers": {flawed{forgets: true, places: true}, func(t *testing.T, a, b locker.Locker) {
			first, second := lock(t, rwlock.New(a).Shared()), lock(t, rwlock.New(b).Shared())
			_, _ = first.Unlock(t.Context()), second.Unlock(t.Context())
		}, true},
		Permits: {flawed{release: yes, acquire: func(n uint64) backend.Grant {
			return backend.Grant{Fence: n, Permits: []int{int(n) % 2}}
		}}, func(t *testing.T, a, b locker.Locker) {
			first, second := lock(t, semaphore.New(a, 1)), lock(t, semaphore.New(b, 1))
			_, _ = first.Unlock(t.Context()), second.Unlock(t.Context())
		}, true},
		Unique: {flawed{release: yes, acquire: func(uint64) backend.Grant { return backend.Grant{Fence: 7} }}, inTurn, false},
		Grant: {flawed{release: yes, acquire: func(n uint64) backend.Grant {
			return backend.Grant{Fence: n, Token: "always the same"}
		}}, inTurn, false},
		RealTime: {flawed{release: yes, acquire: func(n uint64) backend.Grant { return backend.Grant{Fence: 9 - n} }}, inTurn,
			false},
		Order: {flawed{release: yes, acquire: func(n uint64) backend.Grant { return backend.Grant{Fence: 9 - n} }}, inTurn,
			false},
		Confirmed: {flawed{acquire: grants, extend: yes, release: yes}, both(func(ctx context.Context, l locker.Lease) error {
			return l.Extend(ctx)
		}), true},
		Proof: {flawed{acquire: grants, verify: yes, release: yes}, both(locker.Verify), true},
		Early: {flawed{release: taken}, func(t *testing.T, a, _ locker.Locker) {
			_ = lock(t, a).Unlock(t.Context())
		}, false},
		Contrary: {flawed{extend: gone, release: yes}, func(t *testing.T, a, _ locker.Locker) {
			lease := lock(t, a)
			_ = lease.Extend(t.Context())
			_ = lease.Unlock(t.Context())
		}, false},
		Late: {flawed{}, func(t *testing.T, a, _ locker.Locker) {
			lock(t, a)
			time.Sleep(time.Minute)
		}, true},
	} {
		want := rule
		if tt.store.places {
			want = Exclusion
		}
		t.Run(cmp.Or(Titles[rule], rule), func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				tt.store.Backend = memory.NewBackend()
				var files [2]bytes.Buffer
				var lockers [2]locker.Locker
				var ends []func() error
				for i := range lockers {
					store := tt.store // each client has one of its own if the store forgets
					of := &tt.store
					if store.forgets {
						store.Backend = memory.NewBackend()
						of = &store
					}
					log, client := audit.New(&files[i]), locker.NewClient(of)
					ends = append(ends, client.Close, log.Close)
					lockers[i] = client
					if rule == Late {
						lockers[i] = tardy{client}
					}
					lockers[i] = locker.Wrap(lockers[i], log.Middleware("store"))
				}
				tt.use(t, lockers[0], lockers[1])
				for _, end := range ends {
					_ = end()
				}
				logs := New()
				for i := range files {
					if err := logs.Read("log", &files[i]); err != nil {
						t.Fatal(err)
					}
				}
				if rules, found := judged(t, logs, Options{Clocks: tt.clocks}); !slices.Contains(rules, want) {
					t.Errorf("%v, want %s", found, want)
				}
			})
		})
	}
	if want := len(Titles) - 3; want != 12 { // that of contexts is for trials, and two are remarks
		t.Errorf("there are %d rules", want)
	}
}
