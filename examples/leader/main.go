// Leader: one of several candidates leads at a time. It works while it leads, and stops before another one can take
// over.
//
//	go run ./examples/leader    # three candidates in this process, for six seconds
//
//	# in several terminals, until Ctrl-C
//	LOCKER_URL=redis://localhost:6379 go run ./examples/leader -candidates 1 -term 0 -for 0
//
// Then stop the leader in different ways. After Ctrl-C, the next candidate leads at once. After kill -9, it takes a
// TTL. After Ctrl-Z and, some time later, fg, the leader notices that its time is over before it does anything.
//
// The processes share a log if LOCKER_JOURNAL names one (LOCKER_JOURNAL=/tmp/journal). The log stands for the
// database or queue to which a leader writes: see storage.go.
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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all" // the Redis clients that LOCKER_URL may name
	"github.com/golocker/locker/election"
)

const ttl = 3 * time.Second // the time without a leader after one has died. LOCKER_URL can set another one.

var (
	candidates = flag.Int("candidates", 3, "how many `candidates` this process has")
	tick       = flag.Duration("tick", 200*time.Millisecond, "`time` between two pieces of the leader's work")
	limit      = flag.Duration("term", time.Second, "resign after this `time`; 0: never")
	end        = flag.Duration("for", 6*time.Second, "end after this `time`; 0: on Ctrl-C")

	terms, ticks atomic.Int64
)

func main() {
	flag.Parse()
	// On Ctrl-C the leader steps down, so that the next one does not have to wait for the end of the TTL.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program on the spot
	if *end > 0 {
		ctx, stop = context.WithTimeout(ctx, *end)
		defer stop()
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
	fmt.Printf("ok: %d ticks in %d terms of office\n", ticks.Load(), terms.Load())
}

func run(ctx context.Context) error {
	l, err := config.Open(ctx, cmp.Or(os.Getenv("LOCKER_URL"), "memory:"), locker.TTL(ttl))
	if err != nil {
		return err
	}
	defer l.Close()
	s, err := openStorage(os.Getenv("LOCKER_JOURNAL"))
	if err != nil {
		return err
	}
	defer s.Close()

	errs := make([]error, *candidates)
	var wg sync.WaitGroup
	for i := range errs {
		name := fmt.Sprintf("%d/%d", os.Getpid(), i+1)
		wg.Go(func() { errs[i] = campaign(ctx, l, s, name) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// campaign is a candidate, until ctx ends.
func campaign(ctx context.Context, l locker.Locker, s *storage, name string) error {
	say := func(format string, args ...any) {
		fmt.Printf("%s  candidate %s  %s\n", time.Now().Format("15:04:05.000"), name, fmt.Sprintf(format, args...))
	}
	return election.Run(ctx, l, "leader", election.Config{
		Identity: name,
		StopTime: 100 * time.Millisecond, // a tick takes no longer
		OnElected: func(ctx context.Context, term election.Term) error {
			say("leads, with token %d", term.Number)
			terms.Add(1)
			return lead(ctx, term.Number, s, name)
		},
		OnDemoted: func(_ election.Term, cause error) { say("steps down (%v)", cause) },
		OnError:   func(err error) { say("%v", err) },
	})
}

// lead is a term of office.
func lead(ctx context.Context, number uint64, s *storage, name string) error {
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
		if err := s.write(ctx, number, name); err != nil {
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
