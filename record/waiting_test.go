package record_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/record"
)

// The error says what a process that looks for the first time cannot know. With a clock, it knows.
func TestErrorOfAFirstLook(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		acquire(t, backendOf(t, s), 5*time.Second)
		time.Sleep(time.Minute)
		l := client(t, s)
		for _, age := range []time.Duration{1, 12 * time.Millisecond} {
			_, err := l.TryLock(t.Context(), "k")
			var held *locker.HeldError
			if !errors.As(err, &held) || held.Seen != age ||
				!strings.Contains(err.Error(), "ago; from a dead holder it can be") {
				t.Errorf("%v, expected that it was first seen %v ago", err, age)
			}
			time.Sleep(12 * time.Millisecond)
		}
		process := machine(t, s)
		_, err := try(t, process("a"), ttl)
		var held *locker.HeldError
		if !errors.As(err, &held) || held.Seen != 0 {
			t.Errorf("with a clock: %v", err)
		}
	})
}

func client(t *testing.T, s record.Store, opts ...record.Option) *locker.Client {
	l := record.New(s, opts...)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// However many callers of a Client wait, it looks once in a pause.
func TestPollsAreBounded(t *testing.T) {
	for _, poll := range []time.Duration{0, 10 * time.Second} {
		t.Run(fmt.Sprint(poll), func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				lease, err := client(t, s).Lock(t.Context(), "k") // with renewals
				if err != nil {
					t.Fatal(err)
				}
				other := client(t, s, record.Poll(poll))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				before := s.Requests()["get"]
				var wg sync.WaitGroup
				for range 50 {
					wg.Go(func() {
						if l, err := other.Lock(ctx, "k"); err == nil {
							t.Error("got a lock that is held")
							_ = l.Unlock(t.Context())
						}
					})
				}
				wg.Wait()
				if poll == 0 {
					poll = record.DefaultPoll
				}
				least, most := int(time.Minute/poll), 5+int(2*time.Minute/poll)
				if n := s.Requests()["get"] - before; n < least || n > most {
					t.Errorf("%d requests in a minute, want %d to %d", n, least, most)
				}
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A crash costs at most the TTL, from the later of the last renewal and the first look of the next holder, the
// allowance for clocks, and a look.
func TestCrashCosts(t *testing.T) {
	const ttl = 10 * time.Second
	for name, comes := range map[string]time.Duration{
		"before the last renewal": -25 * time.Second, "after it": time.Second, "long after it": time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				holder, other := backendOf(t, s), client(t, s)
				start := time.Now()
				req := acquire(t, holder, ttl)
				crashes := start.Add(30 * time.Second)
				type result struct {
					lease locker.Lease
					err   error
				}
				next := make(chan result, 1)
				first := crashes.Add(comes)
				go func() {
					time.Sleep(time.Until(first))
					l, err := other.Lock(t.Context(), "k", locker.TTL(ttl), locker.NoRenewal())
					next <- result{l, err}
				}()
				for time.Now().Before(crashes) {
					time.Sleep(3 * time.Second)
					if err := holder.Extend(t.Context(), req); err != nil {
						t.Fatal(err)
					}
				}
				last := time.Now()
				got := <-next
				if got.err != nil {
					t.Fatal(got.err)
				}
				if first.After(last) {
					last = first
				}
				if took := time.Since(last); took < ttl || took > record.Patience(ttl)+record.DefaultPoll {
					t.Errorf("the lock was free after %v", took)
				}
				if err := got.lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The clock of a holder that has crashed was an hour ahead of that of the next one, or behind: the lock is free at the
// same time, and tokens grow.
func TestClocksOfClientsDiffer(t *testing.T) {
	for name, d := range map[string]time.Duration{"behind": -time.Hour, "together": 0, "ahead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				start := time.Now()
				last := uint64(start.Add(d).UnixMicro())
				s.Put("k", record.Text("crashed", last, last, ttl))
				for i, other := range []*locker.Client{client(t, s), client(t, s)} {
					lease, err := other.Lock(t.Context(), "k", locker.TTL(ttl))
					if err != nil {
						t.Fatal(err)
					}
					if took := time.Since(start); took < record.Patience(ttl) || took > record.Patience(ttl)+time.Millisecond {
						t.Errorf("client %d has the lock after %v, want %v", i, took, record.Patience(ttl))
					}
					if lease.Fence() <= last {
						t.Errorf("token %d after %d", lease.Fence(), last)
					}
					last = lease.Fence()
					if err := lease.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// closing is a Store that has to be closed.
type closing struct {
	record.Store
	closed int
}

func (c *closing) Close() error {
	c.closed++
	return io.ErrClosedPipe
}

func TestCloseClosesTheStore(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		c := &closing{Store: s}
		b := record.NewBackend(c)
		for range 2 {
			if err := b.Close(); !errors.Is(err, io.ErrClosedPipe) {
				t.Error(err)
			}
		}
		if c.closed != 1 {
			t.Errorf("closed %d times", c.closed)
		}
	})
}

// While the store is down, Close gives each clean-up one more try, and does not wait for those that hang.
func TestCloseDoesNotWait(t *testing.T) {
	for name, fault := range map[string]func(*recordstore.Store) func(){
		"is down": (*recordstore.Store).Down, "hangs": (*recordstore.Store).Hang,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				b := record.NewBackend(s)
				req := acquire(t, b, time.Minute)
				mend := fault(s)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := b.Release(ctx, req); err == nil {
					t.Error("released")
				}
				time.Sleep(10 * time.Second)
				start := time.Now()
				if err := b.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took > time.Second {
					t.Errorf("Close took %v", took)
				}
				mend()
			})
		})
	}
}
