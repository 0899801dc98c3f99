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
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/internal/child"
	"github.com/golocker/locker/internal/testing/redistest"
)

const (
	childEnv = "LOCKER_FENCES_CHILD"
	ttl      = 150 * time.Millisecond
	payers   = 5
	key      = account
)

// plan is what a process is to do: to pay into the account, again and again, until its output is closed.
type plan struct {
	Locks, Driver, Source string
	Fences                fence.SQL
	Naive                 bool // it looks at no tokens
}

// TestLateHolders lets processes that hold a lock be stopped for longer than its TTL, at any moment, also between the
// last statement and the COMMIT, and loses answers to COMMIT. The judge compares the balance with what they say that
// they have paid. LOCKER_FENCES is how many payments there are on each database.
func TestLateHolders(t *testing.T) {
	payments := 40
	if s := os.Getenv("LOCKER_FENCES"); s != "" {
		payments, _ = strconv.Atoi(s)
	}
	locks := "redis+goredis://" + redistest.Start(t).Addr()
	each(t, func(t *testing.T, d *database, fences fence.SQL) {
		fences.Idle = 3 * ttl // one second in MySQL
		p := plan{Locks: locks, Driver: d.driver, Source: d.relayed, Fences: fences}
		said := d.trial(t, p, payments)
		if said.wrong() {
			t.Errorf("with fences: %v", said)
		}
		t.Logf("with fences: %v", said)
	})
}

// TestLateHoldersWithoutFences shows that the trial finds lost payments.
func TestLateHoldersWithoutFences(t *testing.T) {
	locks := "redis+goredis://" + redistest.Start(t).Addr()
	for _, d := range []*database{postgres(t), mariadb(t)} {
		for range 10 {
			if said := d.trial(t, plan{Locks: locks, Driver: d.driver, Source: d.relayed, Naive: true}, 150); said.wrong() {
				t.Logf("%s: %v", d.name, said)
				return
			}
		}
		t.Errorf("%s: no payment was lost", d.name)
	}
}

// said is what the processes say, and the balance at the end.
type said struct {
	mu                           sync.Mutex
	paid, unknown, stale, failed int
	longest                      time.Duration // between two payments
	last                         time.Time
	balance                      int
}

func (s *said) wrong() bool { return s.balance < s.paid || s.balance > s.paid+s.unknown }

func (s *said) String() string {
	return fmt.Sprintf("%d paid, %d perhaps, %d refused, %d failed, at most %v between two; the balance is %d",
		s.paid, s.unknown, s.stale, s.failed, s.longest.Round(time.Millisecond), s.balance)
}

func (s *said) hear(word string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch word {
	case "paid":
		s.paid++
		now := time.Now()
		if !s.last.IsZero() {
			s.longest = max(s.longest, now.Sub(s.last))
		}
		s.last = now
	case "unknown":
		s.unknown++
	case "stale":
		s.stale++
	default:
		s.failed++
	}
}

func (s *said) enough(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paid >= n
}

func (d *database) trial(t *testing.T, p plan, payments int) *said {
	db := d.open(t, p.Fences)
	if d.relay != nil {
		d.relay.Set(func() {
			d.relay.lose = func() bool { return rand.IntN(50) == 0 }
			d.relay.late = func() time.Duration { return time.Duration(max(0, rand.IntN(50)-48)) * 3 * ttl }
		})
	}
	s := new(said)
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(payments)*50*time.Millisecond)
	defer cancel()
	var processes []*exec.Cmd
	for range payers {
		c := start(t, p, &all, s)
		processes = append(processes, c)
	}
	for !s.enough(payments) && ctx.Err() == nil {
		one := processes[rand.IntN(len(processes))].Process
		time.Sleep(time.Duration(rand.Int64N(int64(ttl / 2))))
		_ = one.Signal(syscall.SIGSTOP)
		time.Sleep(time.Duration(rand.Int64N(int64(3 * ttl))))
		_ = one.Signal(syscall.SIGCONT)
	}
	if ctx.Err() != nil {
		t.Errorf("only %d payments in time", s.paid)
	}
	for _, c := range processes {
		_ = c.Process.Signal(syscall.SIGTERM)
	}
	all.Wait()
	var err error
	if s.balance, err = read(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	must(t, db.Close())
	return s
}

func start(t *testing.T, p plan, all *sync.WaitGroup, s *said) *exec.Cmd {
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
	all.Go(func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			s.hear(in.Text())
		}
		if err := c.Wait(); err != nil {
			t.Errorf("a process: %v", err)
		}
		leash.Off()
	})
	return c
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
	db, err := sql.Open(p.Driver, p.Source)
	if err != nil {
		return err
	}
	defer db.Close()
	for ctx.Err() == nil {
		lease, err := l.Lock(ctx, key)
		if err != nil {
			continue
		}
		// The program does not look at its lease: only the resource may stop it.
		switch err := p.pay(db, lease); {
		case err == nil:
			fmt.Println("paid")
		case errors.Is(err, fence.ErrStale):
			fmt.Println("stale")
		case errors.Is(err, fence.ErrUnknown):
			fmt.Println("unknown")
		default:
			fmt.Println("failed:", err)
		}
		_ = lease.Unlock(context.WithoutCancel(ctx))
	}
	return nil
}

func (p *plan) pay(db *sql.DB, lease locker.Lease) error {
	ctx := context.Background()
	slowly := pay(func() { time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond) })
	if !p.Naive {
		return p.Fences.InTx(ctx, db, fence.Of(lease), slowly)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := slowly(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%w: %w", fence.ErrUnknown, err)
	}
	return nil
}
