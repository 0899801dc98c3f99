package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker"
)

const (
	// maxWorkers is how many goroutines of a backend clean up at once.
	maxWorkers = 16

	// maxChores bounds the memory for chores while etcd does not answer. With more, acquisitions are refused, so that
	// none is left that nobody undoes.
	maxChores = 16 << 10
)

// cleanup does in the background what no caller waits for: it undoes attempts, repeats releases, and revokes leases
// that are no longer used. Its goroutines end when there is nothing left to do.
type cleanup struct {
	open context.Context // ends when Close does not wait any longer

	mu      sync.Mutex
	chores  []chore
	workers int
	closed  bool
	running sync.WaitGroup // the workers; Add is called with mu held while closed is false
}

// errBacklog refuses acquisitions while etcd has not answered the clean-up of too many earlier ones.
var errBacklog = fmt.Errorf("%w: etcd has not answered %d requests that clean up", locker.ErrUnavailable, maxChores)

// chore is repeated until it succeeds, or until the lock that it is about has ended anyway.
type chore struct {
	do    func(ctx context.Context) error
	until time.Time
}

func (c *cleanup) begin(open context.Context) { c.open = open }

// add begins a chore. After Close it does nothing: the TTL ends the lock.
func (c *cleanup) add(until time.Time, do func(ctx context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.chores = append(c.chores, chore{do, until})
	if c.workers < maxWorkers {
		c.workers++
		c.running.Go(c.work)
	}
}

// next takes a chore whose time is not over. If there is none, the worker ends.
func (c *cleanup) next() (chore, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.chores) > 0 && c.open.Err() == nil {
		first := c.chores[0]
		c.chores = c.chores[1:]
		if time.Now().Before(first.until) {
			return first, true
		}
	}
	c.workers--
	return chore{}, false
}

// full reports whether there is no room for the chores of another acquisition. Chores whose time is over take none.
func (c *cleanup) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.chores) < maxChores {
		return false
	}
	now := time.Now()
	c.chores = slices.DeleteFunc(c.chores, func(todo chore) bool { return !now.Before(todo.until) })
	return len(c.chores) >= maxChores
}

func (c *cleanup) work() {
	failures := 0
	for {
		todo, ok := c.next()
		if !ok {
			return
		}
		ctx, cancel := context.WithDeadline(c.open, earlier(todo.until, time.Now().Add(DefaultTimeout)))
		err := todo.do(ctx)
		cancel()
		if err == nil {
			failures = 0
			continue
		}
		c.again(todo)
		failures++
		pause := min(time.Second, 20*time.Millisecond<<min(failures, 6))
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-c.open.Done():
		}
	}
}

// again puts a chore back that has failed. It is called by a worker, which goes on.
func (c *cleanup) again(todo chore) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.chores = append(c.chores, todo)
}

// close accepts no more chores, and waits for the others for a while.
func (c *cleanup) close(grace time.Duration) {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		c.running.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-time.After(grace): // the caller ends the context of the workers, and then wait returns
	}
}

// wait returns when the workers have ended. It is called after the end of their context.
func (c *cleanup) wait() { c.running.Wait() }

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
