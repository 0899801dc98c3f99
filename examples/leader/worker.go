package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	ttl       = 3 * time.Second        // the time without a leader after one has died. LOCKER_URL can set another one.
	pieceTime = 100 * time.Millisecond // a piece of the leader's work takes no longer
)

var (
	url        = cmp.Or(os.Getenv("LOCKER_URL"), "memory:")
	candidates = flag.Int("candidates", 3, "how many `candidates` this process has")
	tick       = flag.Duration("tick", 200*time.Millisecond, "`time` between two pieces of the leader's work")
	limit      = flag.Duration("term", time.Second, "resign after this `time`; 0: never")
	end        = flag.Duration("for", 6*time.Second, "end after this `time`; 0: on Ctrl-C")

	terms, ticks atomic.Int64
)

// run starts as many candidates as the flag says, and waits until they have ended.
func run(ctx context.Context, campaign func(ctx context.Context, me *worker) error) {
	if *end > 0 {
		var stop func()
		ctx, stop = context.WithTimeout(ctx, *end)
		defer stop()
	}
	s, err := openStorage(os.Getenv("LOCKER_JOURNAL"))
	exitOn(err)
	errs := make([]error, *candidates)
	var wg sync.WaitGroup
	for i := range errs {
		me := &worker{fmt.Sprintf("%d/%d", os.Getpid(), i+1), s}
		wg.Go(func() { errs[i] = campaign(ctx, me) })
	}
	wg.Wait()
	exitOn(errors.Join(append(errs, s.Close())...))
	fmt.Printf("ok: %d ticks in %d terms of office\n", ticks.Load(), terms.Load())
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

// worker is what a candidate does when it leads.
type worker struct {
	name    string
	storage *storage
}

func (w *worker) says(format string, args ...any) {
	fmt.Printf("%s  candidate %s  %s\n", time.Now().Format("15:04:05.000"), w.name, fmt.Sprintf(format, args...))
}

// work is a term of office.
func (w *worker) work(ctx context.Context, number uint64) error {
	terms.Add(1)
	next := time.NewTicker(*tick)
	defer next.Stop()
	var over <-chan time.Time // a nil channel never fires
	if *limit > 0 {
		over = time.After(*limit)
	}
	// When a process that was stopped continues, the next tick and the end of ctx are both ready, and select takes
	// either. So ask ctx before each piece of work, because its Err looks at the clock.
	for ctx.Err() == nil {
		// Between this look and the write there is always room for a pause, and then only the storage can notice that
		// the write comes too late. So it gets the number of the term.
		if err := w.storage.write(ctx, number, w.name); err != nil {
			return err
		}
		ticks.Add(1)
		select {
		case <-next.C:
		case <-over:
			return nil
		case <-ctx.Done():
		}
	}
	return nil
}
