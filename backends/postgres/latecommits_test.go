package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/internal/testing/child"
	"github.com/golocker/locker/internal/testing/pgtest"
)

const (
	// workerEnv makes the test binary the process that is stopped. Its value is the URL of the server.
	workerEnv = "LOCKER_TEST_WORKER"
	// careEnv says what the process does before it commits.
	careEnv = "LOCKER_TEST_CARE"
	// workersEnv says how many transactions it has open at the same time.
	workersEnv = "LOCKER_TEST_WORKERS"
	// commitsEnv is how many transactions are interrupted, for make late-commits.
	commitsEnv = "LOCKER_LATE_COMMITS"
)

// ttl returns the lease time of a process with that many workers. With many workers a transaction takes longer.
func ttl(workers int) time.Duration { return time.Duration(workers) * 40 * time.Millisecond }

func workerKey(care string, i int) string { return fmt.Sprintf("%s %d", care, i) }

// playWorker writes under locks until it is killed. A transaction writes a row with the fencing token of its lock.
func playWorker(url, care string, workers int) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url+"&pool_max_conns=64")
	if err != nil {
		panic(err)
	}
	l := postgres.New(pool)
	write := func(key string) error {
		lease, err := l.Lock(ctx, key, locker.TTL(ttl(workers)), locker.NoRenewal(), locker.Patience(time.Minute))
		if err != nil {
			return err
		}
		defer func() { _ = lease.Unlock(ctx) }()
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if care == "InTx" {
				if err := postgres.InTx(ctx, tx, lease); err != nil {
					return err
				}
			}
			if _, err := tx.Exec(ctx, "INSERT INTO journal VALUES ($1, $2)", key, int64(lease.Fence())); err != nil {
				return err
			}
			for range 3 { // the work
				if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", ttl(workers).Seconds()/10); err != nil {
					return err
				}
			}
			switch care {
			case "Err":
				return lease.Err()
			case "Verify":
				return locker.Verify(ctx, lease)
			}
			return nil
		})
	}
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for {
				_ = write(workerKey(care, i)) // a transaction that fails is not committed
			}
		})
	}
	wg.Wait()
}

// takeOver is a lock that was granted while its former owner was stopped.
type takeOver struct {
	key    string
	fence  uint64
	before int // rows of earlier owners that were committed when it was granted
}

// lateCommits stops a process in the middle of its transactions until others have its locks, lets it go on, and does so
// again. It returns how many transactions have been committed under a lock that another owner had been granted.
func lateCommits(t *testing.T, s *pgtest.Server, care string, workers, stops int) (late int) {
	t.Helper()
	p := pool(t, s.URL("postgres"))
	earlier := func(key string, fence uint64) (n int) {
		const count = "SELECT count(*) FROM journal WHERE key = $1 AND fence < $2"
		must(t, "count", p.QueryRow(t.Context(), count, key, int64(fence)).Scan(&n))
		return n
	}
	env := []string{
		workerEnv + "=" + s.URL("postgres"), careEnv + "=" + care, workersEnv + "=" + strconv.Itoa(workers),
	}
	worker, err := child.Spawn(os.Args[0], "", env, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Kill()
	l := client(t, s.URL("postgres"))
	var mu sync.Mutex
	var taken []takeOver
	for range stops {
		<-time.After(ttl(workers)/3 + rand.N(ttl(workers)/3))
		worker.Signal(syscall.SIGSTOP)
		var all, granted sync.WaitGroup
		resumed := make(chan struct{})
		for i := range workers {
			granted.Add(1)
			all.Go(func() {
				key := workerKey(care, i)
				lease, err := l.Lock(t.Context(), key)
				for ; err != nil && t.Context().Err() == nil; lease, err = l.Lock(t.Context(), key) {
					t.Logf("Lock is tried again: %v", err) // the machine may be too busy for it
				}
				if err != nil {
					return
				}
				before := earlier(key, lease.Fence())
				granted.Done()
				<-resumed
				if err := lease.Unlock(t.Context()); err != nil {
					t.Logf("Unlock goes on in the background: %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				taken = append(taken, takeOver{key, lease.Fence(), before})
			})
		}
		granted.Wait()
		worker.Signal(syscall.SIGCONT)
		close(resumed)
		all.Wait()
	}
	commits := -1
	eventually(t, "the process goes on after its last stop", func() bool {
		n := commits
		const count = "SELECT count(*) FROM journal WHERE starts_with(key, $1)"
		must(t, "count", p.QueryRow(t.Context(), count, care).Scan(&commits))
		return n >= 0 && commits > n
	})
	worker.Kill()
	for _, o := range taken {
		late += earlier(o.key, o.fence) - o.before
	}
	t.Logf("| %s | %d | %d | %d |", care, stops*workers, commits, late)
	return late
}

// A process that was stopped for longer than its leases commits nothing late with InTx. Without it, it does. If it
// looks at its lease before the commit, or asks the server, few commits are late: those of a process that is stopped
// after that.
func testLateCommits(t *testing.T, s *pgtest.Server) {
	run(t, pool(t, s.URL("postgres")), "CREATE TABLE journal (key text, fence bigint, PRIMARY KEY (key, fence))")
	cares, workers, stops := []string{"InTx", "nothing"}, 8, 2
	if text := os.Getenv(commitsEnv); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		cares, workers = append(cares, "Err", "Verify"), 32
		stops = (n + workers - 1) / workers
	}
	for _, care := range cares {
		t.Run(care, func(t *testing.T) {
			t.Parallel()
			late := lateCommits(t, s, care, workers, stops)
			if care == "InTx" && late > 0 {
				t.Errorf("with InTx: got %d late commits, want none", late)
			}
			for end := time.Now().Add(time.Minute); care == "nothing" && late == 0; {
				if time.Now().After(end) {
					t.Fatal("without InTx: got no late commit within a minute, so that the test shows nothing")
				}
				late = lateCommits(t, s, care, workers, stops) // the process was stopped between its transactions
			}
		})
	}
}
