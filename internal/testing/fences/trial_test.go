package fences_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/internal/child"
	"github.com/golocker/locker/internal/testing/redistest"
)

const (
	childEnv = "LOCKER_FENCES_CHILD"
	ttl      = 150 * time.Millisecond
	payers   = 5 // processes
	accounts = 8 // into each of which each process pays, so that many holders are stopped
)

// plan is what a process is to do: to pay into the accounts, again and again, until it is told to end.
type plan struct {
	Locks, Driver, Source string
	Redis                 string // the address of the accounts, if they are in a Redis
	Fences                fence.SQL
	Naive                 bool // it looks at no tokens
}

// TestLateHolders lets processes that hold locks be stopped for longer than the TTL, at any moment, also between the
// last statement and the COMMIT, and loses answers to COMMIT. The judge compares each balance with what they say that
// they have paid. LOCKER_FENCES is how many payments there are on each database.
func TestLateHolders(t *testing.T) {
	payments := payments(150)
	locks := "redis+goredis://" + redistest.Start(t).Addr()
	each(t, func(t *testing.T, d *database, fences fence.SQL) {
		fences.Idle = 3 * ttl // one second in MySQL
		s := d.trial(t, plan{Locks: locks, Driver: d.driver, Source: d.relayed, Fences: fences}, payments)
		if s.lost() > 0 || s.invented() > 0 {
			t.Errorf("with fences: %v", s)
		}
		t.Logf("with fences: %v", s)
	})
}

func payments(usual int) int {
	if n, err := strconv.Atoi(os.Getenv("LOCKER_FENCES")); err == nil {
		return n
	}
	return usual
}

// TestLateHoldersWithoutFences shows that the trial finds lost payments.
func TestLateHoldersWithoutFences(t *testing.T) {
	locks := "redis+goredis://" + redistest.Start(t).Addr()
	for _, d := range []*database{postgres(t), mariadb(t)} {
		t.Run(d.name, func(t *testing.T) {
			p := plan{Locks: locks, Driver: d.driver, Source: d.relayed, Fences: fence.SQL{Dialect: d.dialect}, Naive: true}
			for range 20 {
				if s := d.trial(t, p, payments(300)); s.lost() > 0 {
					t.Logf("without fences: %v", s)
					return
				}
			}
			t.Error("no payment was lost")
		})
	}
}

// payment is what a process says of one.
type payment struct {
	outcome    string
	account    int
	begun, end time.Time // of its transaction, with entering
}

// said is what the processes say, and the balances at the end.
type said struct {
	mu       sync.Mutex
	outcomes map[string]int
	paid     [accounts]int
	perhaps  [accounts]int
	balances [accounts]int
	waits    []time.Duration // of those who have paid, and were not stopped meanwhile
	began    time.Time
}

// lost returns how many payments are missing for certain.
func (s *said) lost() (n int) {
	for i, balance := range s.balances {
		n += max(0, s.paid[i]-balance)
	}
	return n
}

// invented returns how many nobody has paid.
func (s *said) invented() (n int) {
	for i, balance := range s.balances {
		n += max(0, balance-s.paid[i]-s.perhaps[i])
	}
	return n
}

func (s *said) String() string {
	slices.Sort(s.waits)
	at := func(q float64) time.Duration {
		return s.waits[int(q*float64(len(s.waits)-1))].Round(time.Millisecond)
	}
	return fmt.Sprintf("%v in %v; %d are lost, %d invented; a transaction took %v, p99 %v, at most %v",
		s.outcomes, time.Since(s.began).Round(time.Second), s.lost(), s.invented(), at(0.5), at(0.99), at(1))
}

func (s *said) hear(p payment, stopped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outcomes[p.outcome]++
	switch p.outcome {
	case "paid":
		s.paid[p.account]++
		if !stopped {
			s.waits = append(s.waits, p.end.Sub(p.begun))
		}
	case "unknown":
		s.perhaps[p.account]++
	}
}

func (s *said) enough(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outcomes["paid"] >= n
}

func (d *database) trial(t *testing.T, p plan, payments int) *said {
	db := d.open(t, p.Fences)
	for i := range accounts {
		_, err := db.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO account VALUES (%d, 0, NULL)", i))
		must(t, err)
	}
	s := trial(t, d.relay, p, payments)
	for i := range accounts {
		row := db.QueryRowContext(t.Context(), fmt.Sprintf("SELECT balance FROM account WHERE id = %d", i))
		must(t, row.Scan(&s.balances[i]))
	}
	must(t, db.Close())
	return s
}

// trial lets processes pay by way of the relay, if there is one, and returns what they say.
func trial(t *testing.T, r *relay, p plan, payments int) *said {
	if r != nil {
		r.Set(func() {
			r.lose = func() bool { return rand.IntN(50) == 0 }
			r.late = func() time.Duration { return time.Duration(max(0, rand.IntN(50)-48)) * 3 * ttl }
		})
	}
	s := &said{outcomes: make(map[string]int), began: time.Now()}
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(payments)*50*time.Millisecond)
	defer cancel()
	var processes []*process
	for range payers {
		processes = append(processes, start(t, p, &all, s))
	}
	for !s.enough(payments) && ctx.Err() == nil {
		one := processes[rand.IntN(len(processes))]
		time.Sleep(time.Duration(rand.Int64N(int64(ttl / 2))))
		one.stop(time.Duration(rand.Int64N(int64(3 * ttl))))
	}
	if ctx.Err() != nil {
		t.Errorf("only %v in time", s.outcomes)
	}
	for _, one := range processes {
		_ = one.Process.Signal(syscall.SIGTERM)
	}
	all.Wait()
	return s
}

// process is one that pays.
type process struct {
	*exec.Cmd
	mu    sync.Mutex
	stops [][2]time.Time
}

func (one *process) stop(pause time.Duration) {
	one.mu.Lock()
	one.stops = append(one.stops, [2]time.Time{time.Now(), time.Now().Add(time.Hour)})
	one.mu.Unlock()
	_ = one.Process.Signal(syscall.SIGSTOP)
	time.Sleep(pause)
	_ = one.Process.Signal(syscall.SIGCONT)
	one.mu.Lock()
	defer one.mu.Unlock()
	one.stops[len(one.stops)-1][1] = time.Now()
}

func (one *process) wasStopped(from, to time.Time) bool {
	one.mu.Lock()
	defer one.mu.Unlock()
	return slices.ContainsFunc(one.stops, func(s [2]time.Time) bool { return s[0].Before(to) && from.Before(s[1]) })
}

func start(t *testing.T, p plan, all *sync.WaitGroup, s *said) *process {
	t.Helper()
	text, err := json.Marshal(p)
	must(t, err)
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childEnv+"="+string(text), "GOMAXPROCS=1")
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := c.StdoutPipe()
	must(t, errors.Join(err, c.Start()))
	leash, err := child.NewLeash(c.Process.Pid, "")
	if err != nil {
		_ = c.Process.Kill()
	}
	must(t, err)
	one := &process{Cmd: c}
	all.Go(func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			var p payment
			var begun, end int64
			if _, err := fmt.Sscan(in.Text(), &p.outcome, &p.account, &begun, &end); err != nil {
				t.Errorf("%s: %v", in.Text(), err)
			}
			p.begun, p.end = time.Unix(0, begun), time.Unix(0, end)
			s.hear(p, one.wasStopped(p.begun, p.end))
		}
		if err := c.Wait(); err != nil {
			t.Errorf("a process: %v", err)
		}
		leash.Off()
	})
	return one
}

// runChild pays until the process is told to end. What has been paid is said.
func runChild() error {
	var p plan
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &p); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := config.Open(ctx, p.Locks, locker.TTL(ttl))
	if err != nil {
		return err
	}
	defer l.Close()
	pay, end, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer end()
	var all sync.WaitGroup
	for i := range accounts {
		all.Go(func() {
			for ctx.Err() == nil {
				lease, err := l.Lock(ctx, fmt.Sprintf("account:%d", i))
				if err != nil {
					continue
				}
				begun := time.Now()
				// The program does not look at its lease: only the resource may stop it.
				outcome := outcomeOf(pay(lease, i))
				fmt.Println(outcome, i, begun.UnixNano(), time.Now().UnixNano())
				_ = lease.Unlock(context.WithoutCancel(ctx))
			}
		})
	}
	all.Wait()
	return nil
}

func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "paid"
	case errors.Is(err, fence.ErrStale):
		return "stale"
	case errors.Is(err, fence.ErrUnknown):
		return "unknown"
	}
	return "failed"
}

// open returns what pays into an account, and what ends it.
func (p *plan) open(ctx context.Context) (pay func(locker.Lease, int) error, end func() error, err error) {
	if p.Redis != "" {
		d, err := drivers.Open(ctx, "goredis", drivers.Config{Addr: p.Redis})
		if err != nil {
			return nil, nil, err
		}
		return func(lease locker.Lease, i int) error { return p.payIntoRedis(d, lease, i) }, d.Close, nil
	}
	db, err := sql.Open(p.Driver, p.Source)
	if err != nil {
		return nil, nil, err
	}
	return func(lease locker.Lease, i int) error { return p.pay(db, lease, i) }, db.Close, nil
}

func (p *plan) pay(db *sql.DB, lease locker.Lease, account int) error {
	return p.payInTx(db, lease, func(ctx context.Context, tx *sql.Tx) error {
		var n int
		row := tx.QueryRowContext(ctx, fmt.Sprintf("SELECT balance FROM account WHERE id = %d", account))
		if err := row.Scan(&n); err != nil {
			return err
		}
		think()
		_, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE account SET balance = %d WHERE id = %d", n+1, account))
		return err
	})
}

// think is between what a program reads and what it writes.
func think() { time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond) }

func (p *plan) payInTx(db *sql.DB, lease locker.Lease, do func(context.Context, *sql.Tx) error) error {
	ctx := context.Background()
	if !p.Naive {
		return p.Fences.InTx(ctx, db, fence.Of(lease), do)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%w: %w", fence.ErrUnknown, err)
	}
	return nil
}
