package redlock_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/lookat"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/redlock"
)

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
		l, err := redlock.New([]drivers.Driver{lookat.Late{}, lookat.Late{}, lookat.Late{}}, redlock.Logger(log.Logger))
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
