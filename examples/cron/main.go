// Cron: a job that runs on every tick of the clock, on one machine of several. Each tick is run at most once.
//
//	go run ./examples/cron    # three workers in this process, five ticks
//
//	# on each of several machines
//	LOCKER_URL=redis://localhost:6379 go run ./examples/cron -workers 1 -every 1m -ticks 0
//
// The key names the run, by the job and the tick, so that every tick is a lock of its own. If the lock is taken,
// there is nothing to do: the program calls TryDo, not Do. That alone is not enough. The clocks of the machines
// differ, and a process may be late. If the job takes less time than that, it has released its lock when the last
// machine comes, which finds the lock free and runs the job again. MinHold prevents this: the store keeps the lock
// taken for longer than any machine can be late, even after the job or the process has ended. It delays no machine,
// because the next tick has a lock of its own.
//
// The alternative is one key for all ticks, with a MinHold of half the interval. Then the ticks during a run that
// takes longer than the interval are skipped, so that runs never overlap. Tokens grow from run to run, as a storage
// that checks tokens needs it. But clock differences and delays must stay below half the interval.
//
// At most once is not exactly once. A run that fails, or whose process dies, is not repeated. On Redlock, no machine
// may get the lock if several ask at the very same moment. A program that needs every tick records in the storage
// which ticks have been done.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all" // the Redis clients that LOCKER_URL may name
)

// minHold is more than clocks differ and processes are late. It may be generous, because it costs the store only one
// key.
const minHold = time.Minute

var (
	workers = flag.Int("workers", 3, "how many `workers` this process has, each with a clock of its own")
	every   = flag.Duration("every", 500*time.Millisecond, "`time` between ticks")
	ticks   = flag.Int("ticks", 5, "end after so many `ticks`; 0: on Ctrl-C")
	skew    = flag.Duration("skew", 0, "how far the clock of the first worker is ahead, as a trial; "+
		"the clock of each further worker is 50ms behind the one before")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program on the spot
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "cron:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	l, err := config.Open(ctx, cmp.Or(os.Getenv("LOCKER_URL"), "memory:"))
	if err != nil {
		return err
	}
	defer l.Close()
	ws := make([]worker, *workers)
	var wg sync.WaitGroup
	for i := range ws {
		w := &ws[i]
		w.name, w.locker, w.ahead = fmt.Sprintf("%d/%d", os.Getpid(), i+1), l, *skew-time.Duration(i)*50*time.Millisecond
		wg.Go(func() { w.loop(ctx) })
	}
	wg.Wait()
	ran, skipped, failed := 0, 0, 0
	for _, w := range ws {
		ran, skipped, failed = ran+w.ran, skipped+w.skipped, failed+w.failed
	}
	if failed > 0 {
		return fmt.Errorf("%d ticks ran, %d were skipped, %d failed", ran, skipped, failed)
	}
	fmt.Printf("ok: %d ticks ran, %d were skipped\n", ran, skipped)
	return nil
}

// worker stands for a machine.
type worker struct {
	name                 string
	locker               locker.Locker
	ahead                time.Duration // of its clock
	ran, skipped, failed int
}

// loop waits for each tick and runs the job, unless another worker has.
func (w *worker) loop(ctx context.Context) {
	// Ticks are the times that are multiples of the interval, so that all machines have the same ones, whenever they
	// started.
	tick := time.Now().Add(w.ahead).Truncate(*every)
	for n := 0; *ticks == 0 || n < *ticks; n++ {
		tick = tick.Add(*every)
		select {
		case <-time.After(time.Until(tick.Add(-w.ahead))):
		case <-ctx.Done():
			return
		}
		err := w.once(ctx, tick)
		switch name := tick.UTC().Format("2006-01-02T15:04:05.000"); {
		case err == nil:
			w.ran++
			fmt.Printf("tick %s  worker %s  ran\n", name, w.name)
		case errors.Is(err, locker.ErrHeld):
			w.skipped++
			fmt.Printf("tick %s  worker %s  skipped: another one runs it, or has run it\n", name, w.name)
		case ctx.Err() != nil:
			return
		default:
			w.failed++
			fmt.Printf("tick %s  worker %s  failed: %v\n", name, w.name, err)
		}
	}
}

// once runs the job for a tick, unless another worker does or did; then the error matches locker.ErrHeld.
func (w *worker) once(ctx context.Context, tick time.Time) error {
	key := "cron:report:" + tick.UTC().Format(time.RFC3339Nano)
	ctx = context.WithoutCancel(ctx) // Ctrl-C lets the job finish
	err := locker.TryDo(ctx, w.locker, key, report, locker.MinHold(minHold))
	if errors.Is(err, locker.ErrReleaseUnknown) {
		return nil // the job has run, and the lock stays taken for longer than it has to
	}
	return err
}

// report is the job. It stops when the lock is lost: then another machine may run it.
func report(ctx context.Context) error {
	select {
	case <-time.After(5 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
