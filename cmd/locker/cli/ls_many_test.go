//go:build linux

package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
)

// listedEnv is how many locks there are in each store while their list is measured. Without it, there are some.
const listedEnv = "LOCKER_LISTED"

// crowded is a store with many locks.
type crowded struct {
	url     string
	watch   func()               // begins to measure the steps of the server
	longest func() (text string) // says which steps since then were long
}

// TestLsOfMany lists many locks, and measures what that takes of time and memory, how long the steps of the servers
// are, and how long others wait meanwhile. Each must be listed, and the memory must not grow with their number.
func TestLsOfMany(t *testing.T) {
	many, window := 5000, 100*time.Millisecond
	if v := os.Getenv(listedEnv); v != "" {
		var err error
		many, err = strconv.Atoi(v)
		require.NoError(t, err)
		window = 5 * time.Second
	}
	for name, start := range map[string]func(t *testing.T, many int) crowded{
		"Redis": func(t *testing.T, many int) crowded {
			s := redistest.Start(t)
			return crowdedRedis(t, "redis://"+s.Addr(), many, s)
		},
		"Redis Cluster": func(t *testing.T, many int) crowded {
			c := redistest.StartCluster(t, 3, false)
			return crowdedRedis(t, "redis+cluster://"+c.Masters[0].Addr(), many, c.Masters...)
		},
		"PostgreSQL": crowdedPostgres,
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, many)
			s.watch()
			some := listedBy(t, s.url, "many00000", 100)
			all := listedBy(t, s.url, "", many)
			t.Logf("%d locks in %v; %s", many, all.took.Round(time.Millisecond), s.longest())
			t.Logf("memory of ls: %d MB for %d locks, %d MB for %d", all.memory>>10, many, some.memory>>10, some.n)
			assert.Less(t, all.memory, 2*some.memory+32<<10, "kilobytes, however many locks there are")
			var ratios []float64
			for range 5 {
				quiet := othersWait(t, s.url, window)
				p := command(t, s.url, "ls")
				out := &counted{begun: make(chan struct{})}
				p.Stdout = out
				p.begin(t)
				select {
				case <-out.begun:
				case <-p.done:
					require.Fail(t, "ls lists nothing", p.err.String())
				}
				beside := othersWait(t, s.url, window)
				_ = p.Process.Kill()
				<-p.done
				ratios = append(ratios, float64(beside)/float64(quiet))
				t.Logf("p99 of others: %v, and %v beside a list", quiet, beside)
			}
			slices.Sort(ratios)
			t.Logf("p99 of others beside a list, to that without: %.1f (%.1f to %.1f)", ratios[2], ratios[0], ratios[4])
		})
	}
}

// crowdedRedis gives many copies of a lock to servers, of which each keeps those of its slots.
func crowdedRedis(t *testing.T, url string, many int, servers ...*redistest.Server) crowded {
	l, err := config.Open(t.Context(), url)
	require.NoError(t, err)
	lease, err := l.Lock(t.Context(), "sample", locker.Label("web-7:4211"))
	require.NoError(t, err)
	const copies = `for i = ARGV[2], ARGV[3] do
		redis.pcall('SET', string.format('lock:many%07d', i), ARGV[1], 'PX', 86400000)
	end`
	for _, s := range servers {
		value, err := s.Do("GET", "lock:sample")
		if err != nil {
			continue // it has another server
		}
		for _, of := range servers {
			for from := 0; from < many; from += 10_000 {
				of.Cmd(t, "EVAL", copies, 0, value, from, min(from+10_000, many)-1)
			}
		}
	}
	require.NoError(t, lease.Unlock(t.Context()))
	require.NoError(t, l.Close())
	return crowded{
		url: url,
		watch: func() {
			for _, s := range servers {
				s.Cmd(t, "CONFIG", "SET", "slowlog-log-slower-than", 1000)
				s.Cmd(t, "CONFIG", "SET", "slowlog-max-len", 10_000)
				s.Cmd(t, "CONFIG", "RESETSTAT")
				s.Cmd(t, "SLOWLOG", "RESET")
			}
		},
		longest: func() (text string) {
			n, longest, calls, used := 0, int64(0), 0, 0
			for _, s := range servers {
				slow, _ := s.Cmd(t, "SLOWLOG", "GET", 10_000).([]any)
				n += len(slow)
				for _, entry := range slow {
					longest = max(longest, entry.([]any)[2].(int64))
				}
				stats, _ := s.Cmd(t, "INFO", "commandstats").(string)
				for line := range bytes.Lines([]byte(stats)) {
					var of, took int
					if _, err := fmt.Sscanf(string(line), "cmdstat_evalsha:calls=%d,usec=%d", &of, &took); err == nil {
						calls, used = calls+of, used+took
					}
				}
			}
			return fmt.Sprintf("%d steps of %d µs each; %d took a server more than 1 ms, the longest %v", calls,
				used/max(1, calls), n, time.Duration(longest)*time.Microsecond)
		},
	}
}

// crowdedPostgres gives many copies of a lock to a server.
func crowdedPostgres(t *testing.T, many int) crowded {
	s := pgtest.Start(t, "shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track=all",
		"max_wal_size=4GB")
	url := s.URL("postgres")
	db, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close(context.WithoutCancel(t.Context())) })
	_, err = postgreslock.Migrate(t.Context(), db)
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), `INSERT INTO locker.locks
		SELECT convert_to('lock:many' || to_char(i, 'FM0000000'), 'UTF8'), 'token' || i, 'web-7:4211', i + 1, now(),
		now() + interval '1 day' FROM generate_series(0, $1 - 1) i`, many)
	require.NoError(t, err)
	for _, statement := range []string{"VACUUM ANALYZE locker.locks", "CREATE EXTENSION pg_stat_statements"} {
		_, err = db.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	return crowded{
		url: url,
		watch: func() {
			_, err := db.Exec(t.Context(), "SELECT pg_stat_statements_reset()")
			require.NoError(t, err)
		},
		longest: func() (text string) {
			require.NoError(t, db.QueryRow(t.Context(), `SELECT format('%s requests took the server %s ms each, at most %s ms',
				calls, round(mean_exec_time::numeric, 2), round(max_exec_time::numeric, 2)) FROM pg_stat_statements
				WHERE query LIKE 'SELECT%.list(%' ORDER BY calls DESC LIMIT 1`).Scan(&text))
			return text
		},
	}
}

// counted counts lines.
type counted struct {
	lines int
	begun chan struct{} // closed when something has come
}

func (c *counted) Write(p []byte) (int, error) {
	if c.lines == 0 {
		close(c.begun)
	}
	c.lines += bytes.Count(p, []byte("\n"))
	return len(p), nil
}

// listedMany is what a run of locker ls took.
type listedMany struct {
	n      int
	took   time.Duration
	memory int64 // in kilobytes
}

func listedBy(t *testing.T, url, prefix string, want int) listedMany {
	t.Helper()
	p := command(t, url, "ls", prefix)
	p.Env = append(p.Env, "GOGC=100") // as that of users
	out := &counted{begun: make(chan struct{})}
	p.Stdout = out
	began := time.Now()
	p.begin(t)
	<-p.done
	took := time.Since(began)
	require.Zero(t, p.ProcessState.ExitCode(), p.err.String())
	assert.Equal(t, want, out.lines-1, "a line for each lock, and the title")
	return listedMany{out.lines - 1, took, p.ProcessState.SysUsage().(*syscall.Rusage).Maxrss}
}

// othersWait returns what 99 % of acquisitions with their releases take at most, of four callers with a key each, who
// acquire it a thousand times a second at most.
func othersWait(t *testing.T, url string, window time.Duration) time.Duration {
	t.Helper()
	l, err := config.Open(t.Context(), url)
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	var mu sync.Mutex
	var all []time.Duration
	var callers sync.WaitGroup
	for i, end := 0, time.Now().Add(window); i < 4; i++ {
		callers.Go(func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for n := 0; n == 0 || time.Now().Before(end); n++ {
				began := time.Now()
				lease, err := l.TryLock(t.Context(), fmt.Sprint("other", i))
				if err == nil {
					err = lease.Unlock(t.Context())
				}
				took := time.Since(began)
				if !assert.NoError(t, err) {
					return
				}
				mu.Lock()
				all = append(all, took)
				mu.Unlock()
				<-tick.C
			}
		})
	}
	callers.Wait()
	slices.Sort(all)
	return all[len(all)*99/100]
}
