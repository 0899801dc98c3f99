package record

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// cleanupTime is for how long beyond the TTL of a lock its clean-up is repeated. Nobody relies on the lock then, but
	// those who watch it still wait for its length.
	cleanupTime = time.Minute

	// maxWorkers is how many clean-ups of a Backend are in progress at once. While the store is down, this bounds what it
	// is asked: a worker waits for up to a second after each failure.
	maxWorkers = 8

	// maxJobs bounds the clean-ups that wait for a store that is down. Locks of those beyond end with their TTL.
	maxJobs = 10_000
)

// cleanup does in the background what no caller waits for: it undoes attempts, and repeats releases. Its goroutines end
// when there is nothing left to do.
type cleanup struct {
	open    context.Context // ends when Close does not wait any longer
	closing chan struct{}   // closed when Close begins: each job gets one more try
	timeout time.Duration   // of one try

	mu      sync.Mutex
	jobs    []job
	workers int
	closed  bool
	running sync.WaitGroup // the workers; Add is called with mu held while closed is false
}

// job is repeated until it succeeds, or until its time is over.
type job struct {
	do    func(ctx context.Context) error
	until time.Time
}

// add begins a job. After Close it does nothing.
func (c *cleanup) add(until time.Time, do func(ctx context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.jobs) >= maxJobs {
		return
	}
	c.jobs = append(c.jobs, job{do, until})
	if c.workers < maxWorkers {
		c.workers++
		c.running.Go(c.work)
	}
}

// next takes a job. If there is none, the worker ends.
func (c *cleanup) next() (job, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.jobs) == 0 || c.open.Err() != nil {
		c.workers--
		return job{}, false
	}
	first := c.jobs[0]
	c.jobs = c.jobs[1:]
	return first, true
}

func (c *cleanup) work() {
	for failures := 0; ; {
		todo, ok := c.next()
		if !ok {
			return
		}
		ctx, cancel := context.WithTimeout(c.open, c.timeout)
		err := todo.do(ctx)
		cancel()
		if err == nil {
			failures = 0
			continue
		}
		if time.Now().Before(todo.until) {
			c.again(todo)
		}
		failures++
		d := min(time.Second, 20*time.Millisecond<<min(failures, 6))
		t := time.NewTimer(d/2 + rand.N(d/2))
		select {
		case <-t.C:
		case <-c.closing:
		}
		t.Stop()
	}
}

// again puts a job back that has failed, unless Close has begun. It is called by a worker, which goes on.
func (c *cleanup) again(todo job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.jobs = append(c.jobs, todo)
	}
}

// close accepts no more jobs, and waits for the others for grace. The caller then ends the context of the workers, and
// waits for running.
func (c *cleanup) close(grace time.Duration) {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	close(c.closing)
	idle := make(chan struct{})
	go func() {
		c.running.Wait()
		close(idle)
	}()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-idle:
	case <-t.C:
	}
}
