package settings_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/drivers"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/internal/redis/settings"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/virtual"
)

// server is a driver that answers as do says.
type server struct {
	drivers.Driver
	calls atomic.Int32
	do    func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error)
}

func (s *server) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	s.calls.Add(1)
	return s.do(ctx, cmds)
}

// silent is a client that ignores its context for a minute.
func silent(context.Context, []drivers.Command) ([]drivers.Reply, error) {
	time.Sleep(time.Minute)
	return nil, errors.New("no answer")
}

// evicting is a server with a bad policy, whose other answers are refusals.
func evicting(_ context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
	return redistest.Evicting(cmds), nil
}

// What several servers have in common is said once. A server that hangs does not keep the others' findings, and what
// a user may not see is passed over.
func TestLookWarnsOnce(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		log := redistest.NewLog()
		bad, hung := &server{do: evicting}, &server{do: silent}
		l := settings.Begin(log.Logger, time.Second, settings.Use{Redlock: true}, settings.Server{Name: "b", Driver: bad},
			settings.Server{Name: "a", Driver: bad}, settings.Server{Name: "c", Driver: hung})
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		require.Len(t, lines, 1)
		for _, part := range []string{"level=WARN", "allkeys-lru", `servers="[a b]"`, "exclusion (E1) and tokens",
			"CONFIG SET maxmemory-policy noeviction"} {
			assert.Contains(t, lines[0], part)
		}
		assert.Equal(t, int32(2), bad.calls.Load())
		l.Close()
		time.Sleep(time.Hour) // the silent client's call ends, and nothing more is said
		assert.Equal(t, 1, strings.Count(log.String(), "\n"))
	})
}

func TestLookEndsWithClose(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		log := redistest.NewLog()
		start := time.Now()
		l := settings.Begin(log.Logger, 0, settings.Use{}, settings.Server{Name: "a", Driver: &server{do: silent}},
			settings.Server{Name: "b", Driver: &server{do: evicting}})
		synctest.Wait()
		l.Close()
		assert.Zero(t, time.Since(start))
		assert.Empty(t, log.String())
		time.Sleep(time.Hour)
	})
}

// Nobody is asked if nobody would hear the answer.
func TestNoLookWithoutLogger(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := &server{do: evicting}
		for _, logger := range []*slog.Logger{nil, slog.New(slog.DiscardHandler)} {
			l := settings.Begin(logger, time.Second, settings.Use{}, settings.Server{Name: "a", Driver: s})
			synctest.Wait()
			l.Close()
		}
		assert.Zero(t, s.calls.Load())
	})
}

// Every driver gives the answers of a real server in a form that is understood.
func TestRealServer(t *testing.T) {
	for _, name := range drivers.Names() {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			s.Cmd(t, "CONFIG", "SET", "save", "900 1 300 10")
			d, err := drivers.Open(t.Context(), name, drivers.Config{Network: "tcp", Addr: s.Addr()})
			require.NoError(t, err)
			defer func() { _ = d.Close() }()
			ask := func() settings.Snapshot {
				replies, err := d.Do(t.Context(), settings.Questions()...)
				require.NoError(t, err)
				return settings.Read(replies)
			}
			snapshot := ask()
			assert.Empty(t, snapshot.Unknown())
			assert.Equal(t, "900 1 300 10", snapshot.Config["save"])
			assert.WithinDuration(t, time.Now(), snapshot.Clock, time.Minute)
			for _, f := range settings.Check(snapshot, settings.Use{TTL: 10 * time.Second}) {
				assert.Equal(t, settings.OK, f.Level, "%+v", f)
			}
			for _, c := range []struct{ name, value, check string }{
				{"appendfsync", "everysec", "persistence"}, {"no-appendfsync-on-rewrite", "yes", "persistence"},
				{"maxmemory-policy", "volatile-lru", "eviction"}, {"replica-read-only", "no", "replicas"},
				{"lua-time-limit", "0", "slow scripts"}, {"appendonly", "no", "persistence"},
			} {
				s.Cmd(t, "CONFIG", "SET", c.name, c.value)
				var bad []string
				for _, f := range settings.Check(ask(), settings.Use{}) {
					if f.Level != settings.OK {
						bad = append(bad, f.Check)
					}
				}
				assert.Contains(t, strings.Join(bad, ", "), c.check, c.name)
				if c.name == "appendfsync" {
					s.Cmd(t, "CONFIG", "SET", c.name, "always")
				}
			}
		})
	}
}
