//go:build linux || darwin

package filelock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/filelock"
	"github.com/golocker/locker/internal/child"
)

// programs are what children run.
var programs = map[string]func(args []string){"works": works, "holds": holds, "tries": tries}

const (
	keys     = 8
	workTTL  = 200 * time.Millisecond // of locks of workers
	crashTTL = time.Second            // of a lock whose holder is killed
)

// now returns the time of the clock of this machine, which all processes have. It is not the one of the Store: the
// judge has its own.
func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// journal is what a process tells the judge, line by line. A line is written in one step, so it is whole even if the
// process is killed.
type journal struct{ *os.File }

func tellIn(path string) journal {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	return journal{f}
}

func (j journal) tell(format string, args ...any) {
	if _, err := j.WriteString(fmt.Sprintf(format, args...) + "\n"); err != nil {
		panic(err)
	}
}

// works acquires locks in the directory args[0] as fast as it can, and tells the journal args[1]. Two of its Clients do
// so, which exclude each other, too.
func works(args []string) {
	j := tellIn(args[1])
	var wg sync.WaitGroup
	for range 2 {
		l, err := filelock.Open(args[0])
		if err != nil {
			j.tell("wrong %v", err)
			return
		}
		wg.Go(func() {
			for {
				work(l, j)
			}
		})
	}
	wg.Wait()
}

// work makes an attempt to acquire a lock. Before it releases the lock, it says so.
func work(l *locker.Client, j journal) {
	ctx := context.Background()
	key, asked := rand.N(keys), now()
	lease, err := l.TryLock(ctx, fmt.Sprint("k", key), locker.TTL(workTTL), locker.NoRenewal())
	switch {
	case errors.Is(err, locker.ErrHeld):
		return
	case errors.Is(err, locker.ErrUnavailable): // another process was stopped while it wrote
		return
	case err != nil:
		j.tell("wrong %v", err)
		return
	}
	got := now()
	until := got + time.Until(lease.Until())
	j.tell("got %d %d %d %d %d", key, lease.Fence(), asked, got, until)
	if rand.N(200) == 0 {
		<-time.After(rand.N(workTTL * 3 / 2))
	}
	j.tell("ends %d %d %d", key, lease.Fence(), now())
	if err := lease.Unlock(ctx); err != nil && !errors.Is(err, locker.ErrNotHeld) && !errors.Is(err, locker.ErrLost) &&
		!errors.Is(err, locker.ErrUnavailable) {
		j.tell("wrong %v", err)
	}
}

// holds acquires a lock, and tells when it has asked for it.
func holds(args []string) {
	l, err := filelock.Open(args[0])
	if err != nil {
		panic(err)
	}
	asked := now()
	if _, err := l.TryLock(context.Background(), "job", locker.TTL(crashTTL), locker.NoRenewal()); err != nil {
		panic(err)
	}
	tellIn(args[1]).tell("%d", asked)
	for {
		<-time.After(time.Hour)
	}
}

// tries makes one attempt to acquire the lock, and tells the result.
func tries(args []string) {
	j := tellIn(args[1])
	l, err := filelock.Open(args[0])
	if err == nil {
		_, err = l.TryLock(context.Background(), "job", locker.NoRenewal())
	}
	switch {
	case err == nil:
		j.tell("got %d", now())
	case errors.Is(err, locker.ErrHeld):
		j.tell("held")
	default:
		j.tell("wrong %v", err)
	}
}

func spawn(t *testing.T, program string, args ...string) *child.Process {
	t.Helper()
	p, err := child.Spawn(os.Args[0], "", []string{asChild + "=" + program, "GORACE=atexit_sleep_ms=0"}, args)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// await waits until a condition holds, for three minutes.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !holds(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after three minutes", what)
		}
	}
}

func lines(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	all := strings.Split(string(text), "\n")
	return all[:len(all)-1]
}

// A crontab goes on after one of its jobs was killed: processes that look once find the lock free when its TTL is over.
func TestCrontabGoesOn(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir, held := filepath.Join(base, "locks"), filepath.Join(base, "held")
	p := spawn(t, "holds", dir, held)
	defer p.Kill()
	await(t, "the first job", func() bool { return len(lines(held)) > 0 })
	p.Kill()
	var asked, got time.Duration
	if _, err := fmt.Sscan(lines(held)[0], &asked); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for n := 0; got == 0; n++ {
		start, result := now(), filepath.Join(base, fmt.Sprint("result", n))
		<-spawn(t, "tries", dir, result).Gone()
		switch all := lines(result); {
		case len(all) != 1 || strings.HasPrefix(all[0], "wrong"):
			t.Fatalf("job %d: %q", n, all)
		case all[0] != "held":
			if _, err := fmt.Sscanf(all[0], "got %d", &got); err != nil {
				t.Fatal(err)
			}
		case start > asked+crashTTL+crashTTL/50+10*time.Second:
			t.Fatalf("the lock is held %v after it was asked for, with a TTL of %v", start-asked, crashTTL)
		default:
			refused++
		}
	}
	t.Logf("%d jobs were refused; the next one began %v after the killed one", refused, got-asked)
	if got < asked+crashTTL {
		t.Errorf("the lock was free after %v, with a TTL of %v", got-asked, crashTTL)
	}
}

// hold is a time in which a process relied on a lock.
type hold struct {
	key              int
	token            uint64
	asked, got, ends time.Duration
}

// judge reads the journals. It knows nothing of locks but what they promise.
func judge(t *testing.T, journals []string) (total int) {
	t.Helper()
	byKey := make([][]hold, keys)
	tokens := make([]map[uint64]int, keys) // the places in byKey
	for i := range tokens {
		tokens[i] = make(map[uint64]int)
	}
	for _, path := range journals {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) { // it was killed before it began
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		for in := bufio.NewScanner(f); in.Scan(); {
			var h hold
			line := in.Text()
			switch n, _ := fmt.Sscanf(line, "got %d %d %d %d %d", &h.key, &h.token, &h.asked, &h.got, &h.ends); {
			case n == 5:
				if _, twice := tokens[h.key][h.token]; twice {
					t.Errorf("key %d: token %d was issued twice", h.key, h.token)
				}
				tokens[h.key][h.token] = len(byKey[h.key])
				byKey[h.key] = append(byKey[h.key], h)
				total++
				continue
			case strings.HasPrefix(line, "ends"):
				if _, err := fmt.Sscanf(line, "ends %d %d %d", &h.key, &h.token, &h.ends); err == nil {
					was := &byKey[h.key][tokens[h.key][h.token]]
					was.ends = min(was.ends, h.ends)
					continue
				}
			}
			t.Errorf("%s: %s", filepath.Base(path), line)
		}
		_ = f.Close()
	}
	for key, holds := range byKey {
		judgeKey(t, key, holds)
	}
	return total
}

func judgeKey(t *testing.T, key int, holds []hold) {
	t.Helper()
	byAsked := slices.Clone(holds)
	slices.SortFunc(byAsked, func(a, b hold) int { return int(a.asked - b.asked) })
	slices.SortFunc(holds, func(a, b hold) int { return int(a.got - b.got) })
	var last hold // the one that ends last
	for _, h := range holds {
		if h.ends <= h.got {
			continue
		}
		if h.got < last.ends {
			t.Errorf("key %d: token %d from %v on, beside token %d until %v", key, h.token, h.got, last.token, last.ends)
		}
		if h.ends > last.ends {
			last = h
		}
	}
	var greatest uint64 // of those that were there before
	n := 0
	for _, h := range byAsked {
		for ; n < len(holds) && holds[n].got < h.asked; n++ {
			greatest = max(greatest, holds[n].token)
		}
		if h.token <= greatest {
			t.Errorf("key %d: token %d after %d", key, h.token, greatest)
		}
	}
}

// Six processes acquire locks, 10,000 times or as often as they can on a busy machine, while one after the other is
// killed and stopped at random. No two rely on a lock at a time, tokens grow, and what the dead have left is in
// nobody's way.
func TestProcessesThatAreKilledAndStopped(t *testing.T) {
	t.Parallel()
	const processes = 6
	acquisitions, deaths, stops := 10_000, 25, 25
	if testing.Short() {
		acquisitions, deaths, stops = 2_000, 8, 8
	}
	const few, long = 500, 20 * time.Second // if they are slow
	base := t.TempDir()
	dir := filepath.Join(base, "locks")
	var journals []string
	start := func() *child.Process {
		journals = append(journals, filepath.Join(base, fmt.Sprint("journal", len(journals))))
		return spawn(t, "works", dir, journals[len(journals)-1])
	}
	workers := make([]*child.Process, processes)
	for i := range workers {
		workers[i] = start()
	}
	end := func() {
		for _, w := range workers {
			w.Kill()
		}
	}
	defer end()
	pause := func(most time.Duration) { <-time.After(rand.N(most)) }
	granted := func() (n int) {
		for _, path := range journals {
			n += len(lines(path)) / 2
		}
		return n
	}
	killed, stopped, begun := 0, 0, time.Now()
	await(t, fmt.Sprint(few, " acquisitions"), func() bool {
		for range 10 {
			i := rand.N(processes)
			pause(60 * time.Millisecond)
			if rand.N(2) == 0 {
				workers[i].Kill()
				workers[i] = start()
				killed++
				continue
			}
			workers[i].Signal(syscall.SIGSTOP)
			pause(workTTL * 3 / 2)
			workers[i].Signal(syscall.SIGCONT)
			stopped++
		}
		n := granted()
		return killed >= deaths && stopped >= stops && (n >= acquisitions || n >= few && time.Since(begun) > long)
	})
	end()
	t.Logf("%d acquisitions, %d processes killed and %d stopped", judge(t, journals), killed, stopped)

	l := client(t, dir)
	for key := range keys {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		lease, err := l.Lock(ctx, fmt.Sprint("k", key))
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		unlock(t, lease)
	}
	records := 0
	for _, name := range names(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		switch {
		case err != nil:
			t.Error(err)
		case !strings.Contains(name, "."):
			records++
		case info.Size() > 0: // an empty one is of a process that was killed while it created a record
			t.Errorf("there is a file %s", name)
		}
	}
	if records != keys {
		t.Errorf("there are %d records; want %d", records, keys)
	}
}
