// Quickstart: workers contend for one lock around something that one worker at a time may use. At the end the program
// proves that no two used it at once.
//
//	go run ./examples/quickstart                                                      # goroutines of one process
//	LOCKER_URL=redis://localhost:6379 go run ./examples/quickstart                    # the same on Redis
//	LOCKER_URL=redis+rueidis://localhost:6379?ttl=5s go run ./examples/quickstart     # by another client library
//	LOCKER_URL=redlock://host1,host2,host3 go run ./examples/quickstart               # on a quorum: one node may fail
//
// On Redis several processes can contend, each with a driver of its choice. If they share a journal, each of them
// checks all:
//
//	export LOCKER_JOURNAL=/tmp/journal
//	LOCKER_URL=redis+goredis://localhost go run ./examples/quickstart &
//	LOCKER_URL=redis+redigo://localhost  go run ./examples/quickstart
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	key     = "quickstart"
	workers = 4
	rounds  = 10 // of each worker
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program on the spot
	err := run(ctx)
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Println("interrupted: the turn under way was finished first")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()

	// Only this line chooses the lock.
	l, err := config.Open(ctx, cmp.Or(os.Getenv("LOCKER_URL"), "memory:"))
	if err != nil {
		return err
	}
	defer l.Close()
	j, err := openJournal(os.Getenv("LOCKER_JOURNAL"))
	if err != nil {
		return err
	}
	defer j.Close()

	s := &shared{locker: l, journal: j, begin: time.Now()}
	if err := s.contend(ctx); err != nil {
		return err
	}
	if s.counter != workers*rounds {
		return fmt.Errorf("VIOLATION: the counter is %d after %d rounds", s.counter, workers*rounds)
	}
	return s.prove(ctx)
}

// shared is what the workers share. Only the lock protects the counter and the journal.
type shared struct {
	locker  locker.Locker
	journal *journal
	counter int
	begin   time.Time
}

// contend lets all workers do their rounds, until the first error.
func (s *shared) contend(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, workers)
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			for range rounds {
				if err := s.round(ctx, worker+1); err != nil {
					errs <- err
					cancel() // stops the others
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs // the first, or nil
}

// round is how a lock is used: lock, work while the lease lasts, unlock.
func (s *shared) round(ctx context.Context, worker int) (err error) {
	lease, err := s.locker.Lock(ctx, key) // waits for its turn until ctx ends
	if err != nil {
		return err
	}
	// Unlock releases the lock even if ctx has ended, and its error says whether the lock was lost before.
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()

	from := time.Since(s.begin)
	if err := s.journal.write("start", lease.Fence(), worker); err != nil {
		return err
	}
	n := s.counter // read, wait, write: without a lock, updates would be lost
	select {
	case <-time.After(20*time.Millisecond + rand.N(20*time.Millisecond)):
		s.counter = n + 1
	case <-lease.Done(): // the lock is lost: stop before another worker can get it
		err = lease.Err()
	}
	if err := s.journal.write("end", lease.Fence(), worker); err != nil {
		return err
	}
	to := time.Since(s.begin)
	fmt.Printf("worker %d  token %d  from %.3fs to %.3fs, for %v\n",
		worker, lease.Fence(), from.Seconds(), to.Seconds(), (to - from).Round(time.Millisecond))
	return err
}

// prove reads the journal. It holds the lock, because other processes may still be writing.
func (s *shared) prove(ctx context.Context) error {
	return locker.Do(ctx, s.locker, key, func(context.Context) error {
		turns, err := s.journal.check()
		if err != nil {
			return fmt.Errorf("VIOLATION: %w", err)
		}
		fmt.Printf("ok: %d turns, none overlapped, tokens only grew, the counter is %d\n", turns, s.counter)
		return nil
	})
}
