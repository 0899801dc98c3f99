package postgreslock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/internal/child"
	"github.com/golocker/locker/internal/testing/pgtest"
)

const (
	// workerEnv makes the test binary the process that is stopped. Its value is the URL of the server.
	workerEnv = "LOCKER_TEST_WORKER"
	// careEnv says what the process does before it commits.
	careEnv = "LOCKER_TEST_CARE"
	// workersEnv says how many transactions it has open at the same time.
	workersEnv = "LOCKER_TEST_WORKERS"
	// commitsEnv is how many transactions are interrupted, for trial late-commits. Without it, a few are.
	commitsEnv = "LOCKER_LATE_COMMITS"
)

// calls says what a process calls, by its care.
var calls = map[string]string{
	"InTx": "`InTx`, at the beginning", "Verify": "`locker.Verify`", "Err": "`lease.Err`", "nothing": "nothing",
}

// ttl returns the lease time of a process with that many workers. With many workers a transaction takes longer.
func ttl(workers int) time.Duration {
	return max(320*time.Millisecond, time.Duration(workers)*20*time.Millisecond)
}

func workerKey(care string, i int) string { return fmt.Sprintf("%s %d", care, i) }

// playWorker writes under locks until it is killed. A transaction writes a row with the fencing token of its lock.
func playWorker(url, care string, workers int) {
	ctx := context.Background()
	// Each worker has a connection for its transaction, and they share some for their locks.
	pool, err := pgxpool.New(ctx, fmt.Sprintf("%s&application_name=%s&pool_max_conns=%d", url, care, workers+16))
	if err != nil {
		panic(err)
	}
	l := postgreslock.New(pool, postgreslock.Timeout(time.Minute))
	write := func(key string) error {
		lease, err := l.Lock(ctx, key, locker.TTL(ttl(workers)), locker.NoRenewal(), locker.Patience(time.Minute))
		if err != nil {
			return err
		}
		defer func() { _ = lease.Unlock(ctx) }()
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if care == "InTx" {
				if err := postgreslock.InTx(ctx, tx, lease); err != nil {
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

// trial stops a process in the middle of its transactions until others have its locks, lets it go on, and does so
// again.
type trial struct {
	care    string
	workers int

	interrupted int // transactions that were open when the process was stopped
	commits     int
	late        int // commits under a lock that another owner had been granted
}

// openSQL counts the transactions that write under locks.
const openSQL = "SELECT count(*) FROM pg_stat_activity WHERE application_name || ' ' = $1 AND " +
	"(state = 'idle in transaction' OR state = 'active' AND query ~ '^(INSERT INTO journal|SELECT pg_sleep)')"

// run goes on until that many transactions have been interrupted.
func (r *trial) run(t *testing.T, s *pgtest.Server, interrupted int) {
	t.Helper()
	p := pool(t, s.URL("postgres"))
	count := func(sql string, args ...any) (n int) {
		must(t, "count", p.QueryRow(t.Context(), sql, append([]any{r.care + " "}, args...)...).Scan(&n))
		return n
	}
	env := []string{
		workerEnv + "=" + s.URL("postgres"), careEnv + "=" + r.care, workersEnv + "=" + strconv.Itoa(r.workers),
	}
	worker, err := child.Spawn(os.Args[0], "", env, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Kill()
	l := client(t, s.URL("postgres")+"&pool_max_conns=16", postgreslock.Timeout(time.Minute))
	for r.interrupted < interrupted {
		if worker.Exited() || t.Failed() {
			t.Fatalf("the trial ends after %d interrupted transactions", r.interrupted)
		}
		for i := 0; i < 40 && count(openSQL) < r.workers/2; i++ {
			<-time.After(ttl(r.workers) / 20)
		}
		<-time.After(rand.N(ttl(r.workers) / 3))
		worker.Freeze()
		r.interrupted += count(openSQL)
		r.takeOver(t, l, p, func() { worker.Signal(syscall.SIGCONT) })
	}
	last := texts(t, p, "SELECT clock_timestamp()::text")[0]
	for count(openSQL+" AND xact_start < $2::text::timestamptz", last) > 0 { // what was interrupted last has not ended
		<-time.After(ttl(r.workers) / 20)
	}
	worker.Kill()
	eventually(t, "the server has ended its connections", func() bool {
		return count("SELECT count(*) FROM pg_stat_activity WHERE application_name || ' ' = $1") == 0
	})
	r.commits = count("SELECT count(*) FROM journal WHERE starts_with(key, $1)")
	r.late = count("SELECT coalesce(sum((SELECT count(*) FROM journal j WHERE j.key = o.key AND j.fence < o.fence) " +
		"- before), 0)::bigint FROM takeovers o WHERE starts_with(key, $1)")
}

// takeOver acquires all locks of the process, calls resume, and releases them. For each lock it notes how many
// transactions of earlier owners had been committed when it was granted.
func (r *trial) takeOver(t *testing.T, l locker.Locker, p *pgxpool.Pool, resume func()) {
	t.Helper()
	var all, granted sync.WaitGroup
	resumed := make(chan struct{})
	for i := range r.workers {
		granted.Add(1)
		all.Go(func() {
			key := workerKey(r.care, i)
			lock := func() (locker.Lease, error) {
				return l.Lock(t.Context(), key, locker.TTL(time.Hour), locker.NoRenewal())
			}
			lease, err := lock()
			for ; err != nil && t.Context().Err() == nil; lease, err = lock() {
				t.Logf("Lock is tried again: %v", err) // the machine may be too busy for it
			}
			if err == nil {
				const note = "INSERT INTO takeovers SELECT $1, $2, count(*) FROM journal WHERE key = $1 AND fence < $2"
				run(t, p, note, key, int64(lease.Fence()))
			}
			granted.Done()
			<-resumed
			if err == nil {
				_ = lease.Unlock(t.Context()) // it goes on in the background
			}
		})
	}
	granted.Wait()
	resume()
	close(resumed)
	all.Wait()
}

// A process that was stopped for longer than its leases commits nothing late with InTx. Without it, it does. If it
// looks at its lease before the commit, or asks the server, few commits are late: those of a process that is stopped
// after that.
func testLateCommits(t *testing.T, s *pgtest.Server) {
	cares, workers, interrupted := []string{"InTx", "nothing"}, 8, 8
	text := os.Getenv(commitsEnv)
	if text != "" {
		var err error
		if interrupted, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		cares, workers = []string{"InTx", "Verify", "Err", "nothing"}, 200
		s = migrated(t, "max_connections=1000")
	}
	p := pool(t, s.URL("postgres"))
	run(t, p, "CREATE TABLE journal (key text, fence bigint, PRIMARY KEY (key, fence))")
	run(t, p, "CREATE TABLE takeovers (key text, fence bigint, before bigint)")
	began, trials := time.Now(), make([]*trial, len(cares))
	t.Run("stopped", func(t *testing.T) {
		for i, care := range cares {
			trials[i] = &trial{care: care, workers: workers}
			t.Run(care, func(t *testing.T) {
				t.Parallel()
				r := trials[i]
				r.run(t, s, interrupted)
				for range 9 { // the process may have been stopped between its transactions
					if care == "nothing" && r.late == 0 {
						r.run(t, s, r.interrupted+interrupted)
					}
				}
				if care == "nothing" && r.late == 0 {
					t.Error("without InTx: got no late commit, so that the test shows nothing")
				}
			})
		}
	})
	if late := trials[0].late; late > 0 {
		t.Errorf("with InTx: got %d late commits, want none", late)
	}
	if text != "" {
		reportLateCommits(t, trials, began, texts(t, p, "SHOW server_version")[0])
	}
}

// reportLateCommits prints a table.
func reportLateCommits(t *testing.T, trials []*trial, began time.Time, version string) {
	t.Helper()
	version, _, _ = strings.Cut(version, " ")
	var b strings.Builder
	fmt.Fprintf(&b, "`%s=%s go test -C backends/postgreslock -run TestOneServer/LateCommits .`, %s, PostgreSQL %s, %s, "+
		"%s/%s, %d processors, %d transactions at a time in each row, in %v.\n\n", commitsEnv, os.Getenv(commitsEnv),
		began.Format("2 January 2006 15:04"), version, runtime.Version(), runtime.GOOS, runtime.GOARCH,
		runtime.NumCPU(), trials[0].workers, time.Since(began).Round(time.Second))
	b.WriteString("| before the commit, the process calls | interrupted | commits | late ones |\n" +
		"| --- | --: | --: | --: |\n")
	for _, r := range trials {
		fmt.Fprintf(&b, "| %s | %d | %d | %d |\n", calls[r.care], r.interrupted, r.commits, r.late)
	}
	t.Logf("\n%s", b.String())
}
