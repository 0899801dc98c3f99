// Cron: a job that runs on every tick of the clock, on one machine of several. Each tick is run at most once.
//
//	go run ./examples/cron    # three workers in this process, five ticks
//
//	# on each of several machines
//	LOCKER_URL=redis://localhost:6379 go run ./examples/cron -workers 1 -every 1m -ticks 0
//
// Package once makes each tick a lock of its own, which is kept after the job has ended. Otherwise the last machine,
// whose clock is behind, would find the lock free and run the job again. It delays no machine, because the next tick
// has another lock.
//
// At most once is not exactly once. A run that fails, or whose process dies, is not repeated. A program that needs
// every tick records in the storage which ticks have been done.
package main

import (
	"cmp"
	"context"
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
	"github.com/golocker/locker/once"
)

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
	for i := range ws {
		w := &ws[i]
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
	name   string
	locker locker.Locker
	ahead  time.Duration // of its clock

	mu                   sync.Mutex
	ran, skipped, failed int
}

// loop waits for each tick and starts the job, unless another worker has.
func (w *worker) loop(ctx context.Context) {
	var jobs sync.WaitGroup
	defer jobs.Wait()
	// Ticks are the times that are multiples of the interval, so that all machines have the same ones, whenever they
	// started.
	begin := time.Now().Add(w.ahead).Truncate(*every)
	for n := 1; *ticks == 0 || n <= *ticks; n++ {
		tick := begin.Add(time.Duration(n) * *every)
		select {
		case <-time.After(time.Until(tick.Add(-w.ahead))):
		case <-ctx.Done():
			return
		}
		jobs.Go(func() { w.run(context.WithoutCancel(ctx), tick) }) // Ctrl-C lets the job finish
	}
}

// run runs the job for a tick, unless another worker does or did.
func (w *worker) run(ctx context.Context, tick time.Time) {
	outcome, err := once.Do(ctx, w.locker, "cron:report", tick, report)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch name := tick.UTC().Format("2006-01-02T15:04:05.000"); {
	case err != nil: // of the job, or of the store
		w.failed++
		fmt.Printf("tick %s  worker %s  %s: %v\n", name, w.name, outcome, err)
	case outcome == once.Elsewhere:
		w.skipped++
		fmt.Printf("tick %s  worker %s  skipped: another one runs it, or has run it\n", name, w.name)
	default:
		w.ran++
		fmt.Printf("tick %s  worker %s  ran\n", name, w.name)
	}
}

// report is the job. It stops when the lock is lost: then another machine may run the tick.
func report(ctx context.Context) error {
	select {
	case <-time.After(5 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
