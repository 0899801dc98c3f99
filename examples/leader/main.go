// Leader: of several candidates one leads at a time, works while it does, and stops before another can take over.
//
//	go run ./examples/leader                                                     # three candidates in this process, for six seconds
//	LOCKER_URL=redis://localhost:6379 go run ./examples/leader -candidates 1 -term 0 -for 0     # in several terminals, until Ctrl-C
//
// Then stop the leader: by Ctrl-C, and the next one leads at once; by kill -9, and it takes a TTL; by Ctrl-Z, and when it is
// back after a while, by fg, it notices that its time is over before it does anything.
//
// The processes share a log if they are given one (LOCKER_JOURNAL=/tmp/journal), which stands for the database, the queue or
// whatever a leader writes to: see storage.go.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
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
	// ttl is for how long there is no leader after one has died. LOCKER_URL can say otherwise.
	ttl = 3 * time.Second
	// longest is what a tick takes at most. It is not begun with less than that left of the lease.
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
	// On Ctrl-C the leader steps down: nobody has to wait for its TTL to end.
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
	if c, ok := locker.As[io.Closer](l); ok {
		defer c.Close()
	}
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
		// Do waits until the lock is free, locks, calls lead, and unlocks: the next candidate leads at once, and need not wait
		// for the end of the TTL. It does so too if ctx has ended.
		err := locker.Do(ctx, c.locker, key, c.lead)
		if err == nil || ctx.Err() != nil {
			continue
		}
		c.say("%v", err) // the lock was lost, or the store of locks is out of reach
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
	var over <-chan time.Time // never, for nil
	if *term > 0 {
		over = time.After(*term)
	}
	for {
		// A process that was stopped finds everything ready at once when it goes on, the next tick and the end of ctx, and a
		// select takes any of them. So the lease is asked before each piece of work, and it looks at the clock.
		if lease.Err() != nil {
			return nil // Do says why
		}
		// What must not be interrupted is not begun unless there is the time for it. A lease that is renewed has two thirds
		// of its TTL left, so this happens only when renewals fail, and then it is better to step down early.
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
			return nil // Do says so if the lock was lost
		}
	}
}

// work is one piece of the leader's work. It passes ctx on to everything that takes time, and the token to the storage:
// between the look at the lease and the write there is always room for a pause, and then only the storage can tell that
// the write comes too late.
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
