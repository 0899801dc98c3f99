package stored

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	_ "github.com/golocker/locker/backends/etcdlock"
	_ "github.com/golocker/locker/backends/natslock"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/golden"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, redistest.Lingering()...) }

const (
	why = "Programs with other releases of the library read it: VERSIONING.md says what may change, and the trial " +
		"upgrade tries it."
	// ttl is longer than the test.
	ttl = 5 * time.Minute
	key = "orders:42"
	// strange has what names in some of the stores cannot have.
	strange = "a/b%c d.*>{e}ü"
	// limit is for calls of which some wait.
	limit = time.Minute
)

// store is a kind of store with its servers.
type store struct {
	url  string
	dump func(tb testing.TB) string // what the servers have
	// counts says that the store knows how many wait.
	counts bool
	// settings are those of the store that a client makes with its first lock; nil: there are none.
	settings func(tb testing.TB) string
}

// client is a program.
type client struct {
	*config.Opened
	t   *testing.T
	ctx context.Context
}

func (s store) open(t *testing.T, ctx context.Context) client {
	t.Helper()
	l, err := config.Open(ctx, s.url, locker.TTL(ttl), locker.NoRenewal(), locker.Label("web-7"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return client{l, t, ctx}
}

func (c client) lock(key string, opts ...locker.Option) locker.Lease {
	c.t.Helper()
	lease, err := c.Lock(c.ctx, key, opts...)
	if err != nil {
		c.t.Fatal(err)
	}
	return lease
}

func (c client) unlock(lease locker.Lease) {
	c.t.Helper()
	if err := lease.Unlock(c.ctx); err != nil {
		c.t.Fatal(err)
	}
}

// queued waits until a call waits for the lock, as far as the store tells.
func (c client) queued(key string) {
	c.t.Helper()
	i, ok := locker.As[inspect.Inspector](c.Opened)
	if !ok {
		c.t.Fatal("the store shows nothing")
	}
	for {
		seen, err := i.Inspect(c.ctx, key)
		switch {
		case err == nil && seen.Waiting > 0:
			return
		case c.ctx.Err() != nil:
			c.t.Fatalf("nobody waits: %v, %v", seen, err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// What is stored while a lock is held, extended, waited for, handed on, kept and released.
func TestStored(t *testing.T) {
	for name, start := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			s := start(t)
			file := golden.Open(t, strings.ToLower(name)+".txt", why)
			look := func(title string) {
				t.Helper()
				file.Await(title, func() string { return golden.Normal(s.dump(t)) })
			}
			c, other := s.open(t, ctx), s.open(t, ctx)

			lease := c.lock(key)
			look("held")
			if s.settings != nil {
				file.Section("settings", golden.Normal(s.settings(t)))
			}
			if err := lease.Extend(ctx); err != nil {
				t.Fatal(err)
			}
			look("extended")
			if s.counts {
				next := make(chan locker.Lease, 1)
				go func() {
					l, _ := other.Lock(ctx, key, locker.Label("web-8"))
					next <- l
				}()
				c.queued(key)
				look("waited for")
				c.unlock(lease)
				if lease = <-next; lease == nil {
					t.Fatal("the waiter has not got the lock")
				}
			}
			c.unlock(lease)
			look("released")
			c.unlock(c.lock(key, locker.MinHold(ttl/2)))
			look("kept")
			c.lock(strange)
			look("a strange key")
		})
	}
}

// The locks that permits, and shared and exclusive locks, are made of. They are the same in all stores.
func TestNames(t *testing.T) {
	file := golden.Open(t, "names.txt", why)
	file.Section("semaphore of 3", strings.Join(semaphore.New(nil, 3).Locks(key), "\n"))
	all := rwlock.New(nil).Locks(key)
	file.Section("rwlock", fmt.Sprintf("%d locks\n%s", len(all), strings.Join(all, "\n")))
}
