package single_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/single"
)

func TestSettingsAreWarnedOfOnce(t *testing.T) {
	each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "volatile-lru")
		log := redistest.NewLog()
		l := closing(t, single.New(build(t, s.Addr()), single.Name("cache"), single.Logger(log.Logger)))
		eventually(t, 30*time.Second, "a warning", func() bool { return log.String() != "" })
		lease, err := l.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"level=WARN", "volatile-lru", "servers=[cache]", "exclusion (E1)", "noeviction"} {
			if !strings.Contains(log.String(), part) {
				t.Errorf("%s is not in %s", part, log)
			}
		}
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%d warnings: %s", n, log)
		}
	})
}

// unasked fails the test if it is asked.
type unasked struct{ t *testing.T }

func (u unasked) Do(_ context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	u.t.Errorf("asked for %q", cmds)
	return drivers.Refused("ERR", len(cmds)), nil
}

func (unasked) Close() error { return nil }

func TestWithoutLoggerNewSendsNothing(t *testing.T) {
	if err := single.New(unasked{t}).Close(); err != nil {
		t.Fatal(err)
	}
}

// Close ends the look: nothing is logged afterwards.
func TestCloseEndsTheLook(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		log := redistest.NewLog()
		l := single.New(redistest.Late{}, single.Logger(log.Logger))
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
