package redlock_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/redlock"
)

func TestNewWithNodesDownOrHung(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fail, restore func(*redistest.Server)
	}{
		"down": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"hung": {(*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, driver string) {
				c := startCluster(t, 3)
				for _, s := range c {
					tt.fail(s)
				}
				defer func() {
					for _, s := range c {
						s.Resume()
					}
				}()
				var ds []drivers.Driver
				for _, s := range c {
					d, err := drivers.Open(t.Context(), driver, drivers.Config{Network: "tcp", Addr: s.Addr(), Timeout: longTimeout})
					if err != nil {
						t.Fatal(err)
					}
					ds = append(ds, d)
				}
				start := time.Now()
				l, err := redlock.New(ds, redlock.Budget(200*time.Millisecond), redlock.Timeout(time.Second),
					redlock.Logger(newLog().Logger))
				if took := time.Since(start); err != nil || took > longTimeout/2 {
					t.Fatalf("New takes %v: %v", took, err)
				}
				defer l.Close()
				_, err = l.Lock(t.Context(), "k", locker.TTL(longTTL))
				wantErr(t, err, locker.ErrNoQuorum, locker.ErrUnavailable)
				tt.restore(c[0])
				_, err = l.Lock(t.Context(), "k", locker.TTL(longTTL))
				if err == nil {
					t.Fatal("one of three is no majority")
				}
				tt.restore(c[1])
				eventually(t, 30*time.Second, "two of three serve", func() bool { return tryCycle(t.Context(), l, "k") == nil })
				tt.restore(c[2])
				c.wantNoLocks(t)
			})
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	d := open(t, "redigo", redistest.Start(t).Addr())
	defer d.Close()
	many := make([]drivers.Driver, 33)
	for i := range many {
		many[i] = d
	}
	for text, f := range map[string]func() (*locker.Client, error){
		"no nodes":   func() (*locker.Client, error) { return redlock.New(nil) },
		"32 are":     func() (*locker.Client, error) { return redlock.New(many) },
		"1 names":    func() (*locker.Client, error) { return redlock.New(many[:2], redlock.Names("a")) },
		`called "a"`: func() (*locker.Client, error) { return redlock.New(many[:2], redlock.Names("a", "a")) },
	} {
		l, err := f()
		if err == nil {
			_ = l.Close()
		}
		wantText(t, err, "redlock: ", text)
	}
}

// down is a server that refuses connections.
type down struct{}

func (down) Do(context.Context, ...drivers.Command) ([]drivers.Reply, error) {
	return nil, drivers.NotSent(errors.New("connection refused"))
}

func (down) Close() error { return nil }

func TestABudgetThatCannotBeKeptIsRefused(t *testing.T) {
	t.Parallel()
	for budget, valid := range map[time.Duration]bool{
		-time.Second: false, -1: false, 1: false, 3: false, redlock.MinBudget - 1: false,
		0: true, redlock.MinBudget: true, time.Hour: true,
	} {
		c, err := redlock.New([]drivers.Driver{down{}, down{}, down{}}, redlock.Budget(budget),
			redlock.Logger(slog.New(slog.DiscardHandler)))
		if !valid {
			if !errors.Is(err, locker.ErrInvalid) {
				t.Errorf("Budget(%v): %v, want an error that matches ErrInvalid", budget, err)
			}
			if c == nil {
				continue
			}
		} else if err != nil {
			t.Errorf("Budget(%v): %v", budget, err)
			continue
		}
		if _, err := c.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrNoQuorum) {
			t.Errorf("TryLock with Budget(%v): %v", budget, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What the nodes have in common is one warning, which names them all.
func TestSettingsOfTheNodesAreWarnedOfOnce(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		durable := []string{"--appendonly", "yes", "--appendfsync", "always"}
		c := cluster{redistest.Start(t, durable...), redistest.Start(t), redistest.Start(t)}
		c[0].Cmd(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
		log := newLog()
		l := c.client(t, driver, redlock.Logger(log.Logger), redlock.Names("a", "b", "c"))
		eventually(t, 30*time.Second, "both warnings", func() bool {
			return log.says("level=WARN", "allkeys-lru", "servers=[a]", "exclusion (E1)", "noeviction") &&
				log.says("append-only file is off", `servers="[b c]"`, "tokens without clocks (G1)", "appendfsync always")
		})
		if err := steadyCycle(t.Context(), l, "k"); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "\n"); n != 2 {
			t.Errorf("%d warnings: %s", n, log)
		}
	})
}

// Close ends the look: nothing is logged afterwards.
func TestCloseEndsTheLook(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		log := newLog()
		late := redistest.Late{}
		l, err := redlock.New([]drivers.Driver{late, late, late}, redlock.Logger(log.Logger))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if log.String() != "" {
			t.Errorf("warned of %s", log)
		}
	})
}
