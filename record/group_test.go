package record_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// inGroup makes an attempt to acquire a place of k, as another process does.
func inGroup(t *testing.T, b *record.Backend, place int, ttl time.Duration) (backend.Request, error) {
	t.Helper()
	req := request(ttl)
	req.Key = fmt.Sprintf("{k}#%d", place)
	g, err := b.Acquire(t.Context(), req)
	req.Fence, req.Fences, req.Private = g.Fence, g.Fences, g.Private
	return req, err
}

func grabPlace(t *testing.T, b *record.Backend, place int, ttl time.Duration) backend.Request {
	t.Helper()
	req, err := inGroup(t, b, place, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

const groupName = "=7bk=7d=230" // of the record of {k}#0

// requestsOf returns a function that tells how many requests there were since its last call.
func requestsOf(s *recordstore.Store) (since func() (reads, writes int)) {
	var seen map[string]int
	return func() (reads, writes int) {
		now := s.Requests()
		reads, writes = now["get"]-seen["get"], now["create"]+now["replace"]-seen["create"]-seen["replace"]
		seen = now
		return reads, writes
	}
}

// What a group costs: an exclusive lock was 64 records, each with its own renewals.
func TestRequestsOfAGroup(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		l, other := client(t, s), client(t, s)
		since := requestsOf(s)
		want := func(what string, reads, writes int) {
			t.Helper()
			if r, w := since(); r > reads || w > writes {
				t.Errorf("%s: %d reads and %d writes, want at most %d and %d", what, r, w, reads, writes)
			}
		}
		writer, err := rwlock.New(l).Exclusive().TryLock(t.Context(), "k", locker.TTL(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		want("the first exclusive lock", 1, 1)
		if n := len(s.Text("=7bk=7d=23rw0")); n > 6<<10 {
			t.Errorf("the record of an exclusive lock has %d bytes", n)
		}
		time.Sleep(10 * time.Minute)
		want("ten minutes of an exclusive lock", 0, 600*3/10+10)
		if _, err := rwlock.New(other).Shared().TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("a reader beside a writer: got %v", err)
		}
		want("a look", 1, 0)
		unlock(t, writer)
		want("its release", 0, 1)

		permits := semaphore.New(l, 10)
		var held []locker.Lease
		for range 10 {
			p, err := permits.TryLock(t.Context(), "p", locker.TTL(10*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, p)
		}
		want("ten permits of one process", 1, 10)
		time.Sleep(10 * time.Minute)
		want("ten minutes of ten permits", 0, 600*3/10+10)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if _, err := semaphore.New(other, 10).Lock(ctx, "p"); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("a permit more: got %v", err)
		}
		// The gate of the one that waits is renewed, too, and its looks are those of one waiter for a lock.
		want("ten minutes of them and of a waiter", 600*3, 3*600*3/10+10)
		for _, p := range held {
			unlock(t, p)
		}
	})
}

func unlock(t *testing.T, l locker.Lease) {
	t.Helper()
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// Each renewal of the living makes a new version of the record. The dead count by their own.
func TestDeadEntryBesideLivingOnes(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		const ttl = 10 * time.Second
		living, dead, other := client(t, s), backendOf(t, s), backendOf(t, s)
		if _, err := living.Lock(t.Context(), "{k}#0", locker.TTL(time.Second)); err != nil {
			t.Fatal(err)
		}
		grabPlace(t, dead, 1, ttl)
		died := time.Now()
		for {
			req, err := inGroup(t, other, 1, ttl)
			if err == nil {
				if took := time.Since(died); took < ttl || took > record.Patience(ttl)+2*time.Second {
					t.Errorf("the place was free after %v", took)
				}
				if err := other.Release(t.Context(), req); err != nil {
					t.Error(err)
				}
				break
			}
			if time.Since(died) > 2*ttl {
				t.Fatalf("the place of a dead process: %v", err)
			}
			time.Sleep(time.Second)
		}
		if _, err := inGroup(t, other, 0, ttl); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("the place of the living: %v", err)
		}
	})
}

// slow is a store that takes one write a second, as some do for one object, and refuses others.
type slow struct {
	record.Store
	mu   *sync.Mutex
	last *time.Time
}

func (s slow) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	s.mu.Lock()
	refused := time.Since(*s.last) < time.Second
	if !refused {
		*s.last = time.Now()
	}
	s.mu.Unlock()
	if refused {
		return "", errors.New("429 Too Many Requests")
	}
	return s.Store.Replace(ctx, name, version, text)
}

// No lease is lost because others renew theirs in the same record.
func TestFortyHoldersOfOneGroup(t *testing.T) {
	for name, tt := range map[string]struct {
		ttl, lasts time.Duration
		slow       bool
	}{
		"many writes":        {10 * time.Second, 3 * time.Minute, false},
		"one write a second": {5 * time.Minute, 20 * time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				s.Latency = 10 * time.Millisecond
				var last time.Time
				var mu sync.Mutex
				var own record.Store = s
				if tt.slow {
					own = slow{s, &mu, &last}
				}
				var leases []locker.Lease
				for range 40 {
					for {
						l, err := semaphore.New(client(t, own), 40).TryLock(t.Context(), "k", locker.TTL(tt.ttl))
						if err == nil {
							leases = append(leases, l)
							break
						}
						if !errors.Is(err, locker.ErrUnavailable) {
							t.Fatal(err)
						}
						time.Sleep(time.Second)
					}
				}
				since := requestsOf(s)
				_, _ = since()
				time.Sleep(tt.lasts)
				reads, writes := since()
				hours := tt.lasts.Hours() * 40
				t.Logf("each reads %.0f times an hour, and writes %.0f times", float64(reads)/hours, float64(writes)/hours)
				for _, l := range leases {
					if err := l.Err(); err != nil {
						t.Errorf("after a while: %v", err)
					}
				}
			})
		})
	}
}

// A request that hangs holds up renewals of the same process for no longer than each of them may take.
func TestRequestThatHangsEndsNoLease(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		l := client(t, s)
		permits := semaphore.New(l, 3)
		lease, err := permits.TryLock(t.Context(), "k", locker.TTL(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			s.Inject(once(recordstore.Fault{Before: time.Hour}))
			other, err := permits.TryLock(t.Context(), "k", locker.TTL(time.Minute))
			if err == nil {
				unlock(t, other)
			}
			time.Sleep(time.Second)
			if err := lease.Err(); err != nil {
				t.Fatal(err)
			}
		}
		unlock(t, lease)
	})
}

// A process that knows no groups has places in records of their own.
func TestGroupsAndSingleRecordsNoticeEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b := backendOf(t, s)
		s.Put(groupName, record.Text("o", 1, 1, time.Second))
		_, err := inGroup(t, b, 3, ttl)
		if !errors.Is(err, locker.ErrForeignKey) || !strings.Contains(err.Error(), "format 1") {
			t.Errorf("a record of one lock in the place of a group: got %v", err)
		}
		s.Delete(groupName)
		grabPlace(t, b, 3, ttl)
		s.Put("k", s.Text(groupName))
		if _, err := try(t, b, ttl); !errors.Is(err, locker.ErrForeignKey) || !strings.Contains(err.Error(), "format 2") {
			t.Errorf("the record of a group in the place of one lock: got %v", err)
		}
	})
}

// Operators see a place, and release it, by its name.
func TestPlaceIsInspectedByItsName(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b, other := backendOf(t, s), backendOf(t, s)
		one, two := grabPlace(t, b, 1, ttl), grabPlace(t, b, 2, ttl)
		for place, want := range map[string]inspect.State{
			"{k}#0": inspect.Free, "{k}#1": inspect.Held, "{k}#2": inspect.Held,
		} {
			i, err := other.Inspect(t.Context(), place)
			if err != nil || i.State != want || i.Fence < one.Fence {
				t.Errorf("%s: got %v, %v", place, i, err)
			}
		}
		if _, err := other.ForceRelease(t.Context(), "{k}#1", ""); err != nil {
			t.Error(err)
		}
		if err := b.Extend(t.Context(), one); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("what was released by force: got %v", err)
		}
		if err := b.Extend(t.Context(), two); err != nil {
			t.Error(err)
		}
		next := grabPlace(t, other, 1, ttl)
		if next.Fence <= two.Fence {
			t.Errorf("token %d after %d", next.Fence, two.Fence)
		}
	})
}

// A client library repeats a release, and reports its success as a conflict. Others have had the place since, and many
// have left the group.
func TestOwnReleaseInAGroupIsNoLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b, other := backendOf(t, s), backendOf(t, s)
		req := grabPlace(t, b, 1, 10*time.Second)
		s.Inject(once(recordstore.Fault{Twice: true, After: time.Second}))
		released := make(chan error, 1)
		go func() { released <- b.Release(t.Context(), req) }()
		time.Sleep(100 * time.Millisecond)
		grabPlace(t, other, 1, 10*time.Second)
		for range 10 {
			next := grabPlace(t, other, 2, 10*time.Second)
			if err := other.Release(t.Context(), next); err != nil {
				t.Error(err)
			}
		}
		if err := <-released; err != nil {
			t.Errorf("a release that was sent twice: got %v", err)
		}
		if err := b.Release(t.Context(), req); err != nil {
			t.Errorf("the same again: got %v", err)
		}
	})
}

// The longest record of a group: each place was written by itself, with the longest texts.
func TestTextsOfGroupsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		start := time.Now().Add(-time.Hour)
		b := backendOf(t, host{s, strings.Repeat("\u00e4", 32), start})
		for i := range 64 {
			req := request(time.Hour)
			req.Key, req.Label = fmt.Sprintf("{k}#%d", i), strings.Repeat(`"`, 64)
			g, err := b.Acquire(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			req.Private = g.Private
			if err := b.Extend(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(s.Text(groupName)); n < 64*300 || n > 32<<10 {
			t.Errorf("64 places have %d bytes", n)
		}
	})
}

// Whatever happens to requests, each place of a group has one holder at a time, and its tokens grow.
func TestOneHolderOfEachPlaceUnderFaults(t *testing.T) {
	eachSeed(t, func(t *testing.T, s *recordstore.Store, rng *rand.Rand) {
		var judges [3]*judge
		for i := range judges {
			judges[i] = &judge{t: t}
		}
		n := run(t, s, rng, 4, func(rng *rand.Rand, l *locker.Client, all *judge) {
			ttl := 100*time.Millisecond + time.Duration(rng.Int64N(int64(2*time.Second)))
			opts := []locker.Option{locker.TTL(ttl)}
			crashes := rng.IntN(4) == 0
			if crashes {
				opts = append(opts, locker.NoRenewal())
			}
			permits := semaphore.New(l, 3).Weight(1 + rng.IntN(3))
			lock := permits.Lock
			if rng.IntN(3) == 0 {
				lock = permits.TryLock
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.Int64N(int64(5*time.Second))))
			defer cancel()
			var before [3]uint64
			for i, j := range judges {
				before[i] = j.asked()
			}
			lease, err := lock(ctx, "k", opts...)
			if err != nil {
				return
			}
			p, _ := locker.LeaseAs[*semaphore.Permit](lease)
			for _, slot := range p.Slots() {
				judges[slot].granted(part{lease, p.Fence()}, before[slot])
			}
			all.mu.Lock()
			all.grants++
			all.mu.Unlock()
			keep(ctx, rng, lease, crashes)
		})
		s.Inject(nil)
		if n < 10 {
			t.Errorf("%d times permits were acquired in a minute", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := semaphore.New(client(t, s), 3).Weight(3).Lock(ctx, "k"); err != nil {
			t.Errorf("after the faults: %v", err)
		}
	})
}

// part is a lease with the token of one of its locks, or a greater one.
type part struct {
	locker.Lease
	fence uint64
}

func (p part) Fence() uint64 { return p.fence }

// Whatever happens to requests, no call leaves a place behind.
func TestNoPlaceIsLeftUnderFaults(t *testing.T) {
	eachSeed(t, func(t *testing.T, s *recordstore.Store, rng *rand.Rand) {
		run(t, s, rng, 3, func(rng *rand.Rand, l *locker.Client, _ *judge) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.Int64N(int64(2*time.Second))))
			defer cancel()
			lease, err := semaphore.New(l, 3).Weight(1+rng.IntN(3)).Lock(ctx, "k", locker.TTL(time.Hour))
			if err != nil {
				return
			}
			time.Sleep(time.Duration(rng.Int64N(int64(50 * time.Millisecond))))
			_ = lease.Unlock(ctx)
		})
		s.Inject(nil)
		time.Sleep(2 * time.Minute)
		if left := s.Taken(); len(left) > 0 {
			t.Errorf("left behind: %s", s.Text(groupName))
		}
	})
}
