package postgres_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/golocker/locker/internal/testing/pgtest"
)

const (
	// visitEnv is how long each contender works in each round. Without it, a short run shows whether all still works.
	visitEnv = "LOCKER_BENCH_VISIT"
	rounds   = 5
)

// scenario is one kind of work.
type scenario struct {
	workers int
	oneKey  bool
}

var scenarios = []scenario{{1, false}, {128, false}, {2, true}, {16, true}}

// figures are what one visit has measured.
type figures struct {
	rate         float64 // cycles per second
	handOver     float64 // median, in milliseconds, from the call that releases to the next grant
	fewest, most float64 // cycles of one worker, to the average
	transactions float64 // at the server, per cycle
	flushes      float64 // of the server's log, per cycle
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSideBySide lets all contenders work in turns, and prints medians.
func TestSideBySide(t *testing.T) {
	visit, n := 100*time.Millisecond, 1
	if text := os.Getenv(visitEnv); text != "" {
		var err error
		if visit, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
		n = rounds
	}
	s := pgtest.Start(t, "fsync=on")
	observer, err := pgxpool.New(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer observer.Close()
	visits := 0
	for _, sc := range scenarios {
		all := make([][]figures, len(contenders))
		for range n {
			for i, c := range contenders {
				visits++ // a lock that is left behind delays no other visit
				all[i] = append(all[i], sc.measure(t, c, s.URL("postgres"), observer, visit, strconv.Itoa(visits)))
			}
		}
		t.Log("\n" + sc.table(all))
	}
}

// measure lets a contender work for the time of a visit.
func (sc scenario) measure(
	t *testing.T, c contender, url string, observer *pgxpool.Pool, visit time.Duration, key string,
) figures {
	t.Helper()
	before := load(t, observer)
	l, done := c.open(t, url)
	w := &work{counts: make([]int, sc.workers)}
	ctx, cancel := context.WithTimeout(t.Context(), visit)
	defer cancel()
	start := time.Now()
	var wg sync.WaitGroup
	for i := range sc.workers {
		key := key
		if !sc.oneKey {
			key += " " + strconv.Itoa(i)
		}
		wg.Go(func() { w.cycles(ctx, t, l, key, i, sc.oneKey) })
	}
	wg.Wait()
	took := time.Since(start)
	done()
	after := load(t, observer)
	return w.figures(took, after[0]-before[0], after[1]-before[1])
}

// work is what the workers of a visit have done.
type work struct {
	counts []int // cycles, by worker

	mu        sync.Mutex
	released  time.Time // when the last release was called
	releaser  int
	handOvers []float64
}

// cycles locks and unlocks until ctx ends.
func (w *work) cycles(ctx context.Context, t *testing.T, l lock, key string, worker int, oneKey bool) {
	for {
		unlock, err := l(ctx, key)
		if err != nil {
			if ctx.Err() == nil {
				t.Errorf("lock: %v", err)
			}
			return
		}
		if oneKey {
			w.mu.Lock()
			now := time.Now()
			if !w.released.IsZero() && w.releaser != worker {
				w.handOvers = append(w.handOvers, now.Sub(w.released).Seconds()*1000)
			}
			w.mu.Unlock()
			pause(time.Millisecond)
			w.mu.Lock()
			w.released, w.releaser = time.Now(), worker
			w.mu.Unlock()
		}
		if err := unlock(); err != nil {
			t.Logf("unlock: %v", err) // the machine may be too busy for it
			continue
		}
		w.counts[worker]++
	}
}

// pause is the work under a lock that others wait for.
func pause(d time.Duration) { <-time.After(d) }

func (w *work) figures(took time.Duration, transactions, flushes float64) figures {
	total := 0
	for _, n := range w.counts {
		total += n
	}
	cycles := max(1, float64(total))
	f := figures{rate: cycles / took.Seconds(), transactions: transactions / cycles, flushes: flushes / cycles}
	average := cycles / float64(len(w.counts))
	f.fewest, f.most = float64(slices.Min(w.counts))/average, float64(slices.Max(w.counts))/average
	if len(w.handOvers) > 0 {
		f.handOver = median(w.handOvers)
	}
	return f
}

// load returns how many transactions the server has ended and how often it has flushed its log. Connections report when
// they end, so load waits until the observer is alone.
func load(t *testing.T, observer *pgxpool.Pool) (n [2]float64) {
	t.Helper()
	const others = "SELECT count(*) FROM pg_stat_activity " +
		"WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
	for left := 1; left > 0; pause(10 * time.Millisecond) {
		if err := observer.QueryRow(t.Context(), others).Scan(&left); err != nil {
			t.Fatal(err)
		}
	}
	const statistics = "SELECT d.xact_commit + d.xact_rollback, w.wal_sync " +
		"FROM pg_stat_database d, pg_stat_wal w WHERE d.datname = current_database()"
	if err := observer.QueryRow(t.Context(), statistics).Scan(&n[0], &n[1]); err != nil {
		t.Fatal(err)
	}
	return n
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// table returns a table of medians. Ratios are medians of the ratios to the first contender in the same round.
func (sc scenario) table(all [][]figures) string {
	column := func(i int, f func(i, round int) float64) float64 {
		values := make([]float64, len(all[i]))
		for round := range values {
			values[round] = f(i, round)
		}
		return median(values)
	}
	var b strings.Builder
	keys := "own keys"
	if sc.oneKey {
		keys = "one key, held for 1 ms"
	}
	fmt.Fprintf(&b, "%d goroutines, %s:\n\n", sc.workers, keys)
	heads := []string{"", "cycles/s", "to the first", "transactions per cycle", "flushes per cycle"}
	if sc.oneKey {
		heads = append(heads, "hand-over", "fewest and most of a goroutine, to the average")
	}
	b.WriteString("| " + strings.Join(heads, " | ") + " |\n|" + strings.Repeat(" --- |", len(heads)))
	for i, c := range contenders {
		fmt.Fprintf(&b, "\n| %s | %.0f | %.2f | %.1f | %.1f |", c.name,
			column(i, func(i, r int) float64 { return all[i][r].rate }),
			column(i, func(i, r int) float64 { return all[i][r].rate / all[0][r].rate }),
			column(i, func(i, r int) float64 { return all[i][r].transactions }),
			column(i, func(i, r int) float64 { return all[i][r].flushes }))
		if sc.oneKey {
			fmt.Fprintf(&b, " %.1f ms | %.2f–%.2f |",
				column(i, func(i, r int) float64 { return all[i][r].handOver }),
				column(i, func(i, r int) float64 { return all[i][r].fewest }),
				column(i, func(i, r int) float64 { return all[i][r].most }))
		}
	}
	return b.String() + "\n"
}
