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

const (
	key = "leader"
	// ttl is the time without a leader after one has died. LOCKER_URL can set another one.
	ttl = 3 * time.Second
	// longest is the time that a tick takes at most. A tick does not begin if less than that is left of the lease.
	longest = 100 * time.Millisecond
	// pause is how long a candidate waits after an error, before it competes again.
	pause = time.Second
)

var (
	candidates = flag.Int("candidates", 3, "how many `candidates` this process has")
	tick       = flag.Duration("tick", 200*time.Millisecond, "`time` between two pieces of the leader's work")
	term       = flag.Duration("term", time.Second, "resign after this `time`; 0: never")
	limit      = flag.Duration("for", 6*time.Second, "end after this `time`; 0: on Ctrl-C")
)

func main() {
	flag.Parse()
	// On Ctrl-C the leader steps down, so that the next one does not have to wait for the end of the TTL.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program on the spot
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if *limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *limit)
		defer cancel()
	}
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

	cs := make([]candidate, *candidates)
	var wg sync.WaitGroup
	for i := range cs {
		c := &cs[i]
		c.name, c.locker, c.storage = fmt.Sprintf("%d/%d", os.Getpid(), i+1), l, s
		wg.Go(func() { c.compete(ctx) })
	}
	wg.Wait()
	terms, ticks := 0, 0
	for _, c := range cs {
		terms, ticks = terms+c.terms, ticks+c.ticks
	}
	fmt.Printf("ok: %d ticks in %d terms of office\n", ticks, terms)
	return nil
}

// candidate leads whenever it can.
type candidate struct {
	name         string
	locker       locker.Locker
	storage      *storage
	terms, ticks int
}

// compete leads again and again, until ctx ends.
func (c *candidate) compete(ctx context.Context) {
	for ctx.Err() == nil {
		// Do waits until the lock is free, locks, calls lead, and unlocks, even if ctx has ended. So the next
		// candidate leads at once, and does not wait for the end of the TTL.
		err := locker.Do(ctx, c.locker, key, c.lead)
		if err == nil || ctx.Err() != nil {
			continue
		}
		c.say("%v", err) // the lock was lost, or the store cannot be reached
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// lead is a term of office. ctx ends when the lock is lost, early enough to stop before another candidate can lead.
func (c *candidate) lead(ctx context.Context) error {
	lease, _ := locker.LeaseFrom(ctx)
	c.terms++
	c.say("leads, with token %d", lease.Fence())
	defer c.say("steps down")
	ticks := time.NewTicker(*tick)
	defer ticks.Stop()
	var over <-chan time.Time // a nil channel never fires
	if *term > 0 {
		over = time.After(*term)
	}
	for {
		// When a process that was stopped continues, the next tick and the end of ctx are both ready, and select
		// takes either. So ask the lease before each piece of work, because it looks at the clock.
		if lease.Err() != nil {
			return nil // Do returns the reason
		}
		// Work that must not be interrupted begins only if there is enough time for it. A lease that is renewed has
		// two thirds of its TTL left. So this happens only when renewals fail, and then it is better to step down
		// early.
		if left := time.Until(lease.Until()); left < longest {
			return fmt.Errorf("stepped down with %v left", left)
		}
		if err := c.work(ctx, lease.Fence()); err != nil {
			return err
		}
		select {
		case <-ticks.C:
		case <-over:
			return nil
		case <-ctx.Done():
			return nil // if the lock was lost, Do returns that
		}
	}
}

// work is one piece of the leader's work. It passes ctx to everything that takes time, and the token to the storage.
// Between the look at the lease and the write there is always room for a pause, and then only the storage can notice
// that the write comes too late.
func (c *candidate) work(ctx context.Context, token uint64) error {
	if err := c.storage.write(ctx, token, c.name); err != nil {
		return err
	}
	c.ticks++
	return nil
}

func (c *candidate) say(format string, args ...any) {
	fmt.Printf("%s  candidate %s  %s\n", time.Now().Format("15:04:05.000"), c.name, fmt.Sprintf(format, args...))
}
