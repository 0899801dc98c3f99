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

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	d := open(t, "redigo", redistest.Start(t).Addr())
	defer d.Close()
	many := make([]drivers.Driver, 33)
	for i := range many {
		many[i] = d
	}
	for text, l := range map[string]*locker.Client{
		"no nodes":   redlock.New(nil),
		"32 are":     redlock.New(many),
		"1 names":    redlock.New(many[:2], redlock.Names("a")),
		`called "a"`: redlock.New(many[:2], redlock.Names("a", "a")),
	} {
		_, err := l.TryLock(t.Context(), "k")
		wantErr(t, err, locker.ErrInvalid)
		wantText(t, err, "redlock: ", text)
		_ = l.Close()
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
		c := redlock.New([]drivers.Driver{down{}, down{}, down{}}, redlock.Budget(budget),
			redlock.Logger(slog.New(slog.DiscardHandler)))
		want := locker.ErrInvalid
		if valid {
			want = locker.ErrNoQuorum
		}
		if _, err := c.TryLock(t.Context(), "k"); !errors.Is(err, want) {
			t.Errorf("TryLock with Budget(%v): %v, want %v", budget, err, want)
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
		l := redlock.New([]drivers.Driver{late, late, late}, redlock.Logger(log.Logger))
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
