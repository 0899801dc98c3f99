package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

// The tempo of the chaos.
const (
	chaosWorkers = 3
	chaosTTL     = 2 * time.Second
	chaosHold    = 1500 * time.Millisecond
	chaosPause   = 3 * time.Second // before each round of restarts
	minChaos     = 5 * time.Second
	maxChaos     = 10 * time.Minute
)

// chaos restarts nodes empty while workers take one lock, and counts how often two of them have it.
type chaos struct {
	app   *app
	guard bool
	last  time.Duration // how long it lasts
	start time.Time

	taken chan struct{} // has room for one; a worker that gets the lock sends to it

	mu       sync.Mutex
	holders  map[int]locker.Lease // by worker
	restarts int
	locks    int
	twice    int
}

// run starts n nodes and lets chaos reign until the time is over or ctx ends. Then it prints what was counted.
func (c *chaos) run(ctx context.Context, n int) error {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return &exitError{exitOSErr, errors.New("--chaos kills processes, and redis-server is not installed"), "install it"}
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // each worker is a client of its own, and would warn of the same
	var nodes []*devNode
	defer func() {
		for _, node := range nodes {
			node.stop()
		}
	}()
	for range n {
		node, err := startRedis(ctx, binary, "", forgetful)
		if err != nil {
			return chaosEnd(ctx, err)
		}
		nodes = append(nodes, node)
	}
	cfg, err := c.config(nodes)
	if err == nil && c.guard {
		err = bootstrapped(ctx, cfg)
	}
	if err != nil {
		return chaosEnd(ctx, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.last)
	defer cancel()
	if err := c.reign(ctx, cfg, binary, nodes); err != nil {
		return chaosEnd(ctx, err)
	}
	return c.summary()
}

// reign strikes while the workers work, until ctx ends.
func (c *chaos) reign(ctx context.Context, cfg *config.Config, binary string, nodes []*devNode) (err error) {
	c.start, c.holders, c.taken = time.Now(), map[int]locker.Lease{}, make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range chaosWorkers {
		l, err := cfg.Open(ctx, locker.Label(fmt.Sprint("worker ", i+1)))
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer func() { _ = l.Close() }()
			c.work(ctx, i+1, l)
		})
	}
	for round := 0; err == nil && pause(ctx, chaosPause) && c.nextLock(ctx); round++ {
		err = c.strike(ctx, binary, nodes, round)
	}
	if ctx.Err() != nil { // a server may not have come up because of that
		return nil
	}
	return err
}

// nextLock waits until a worker gets the lock. It returns false if ctx ends first.
func (c *chaos) nextLock(ctx context.Context) bool {
	select {
	case <-c.taken: // by an earlier one
	default:
	}
	select {
	case <-c.taken:
		return true
	case <-ctx.Done():
		return false
	}
}

// strike kills a majority of the nodes and starts them again, empty. The holder then has less than a majority, and has
// not noticed it yet.
func (c *chaos) strike(ctx context.Context, binary string, nodes []*devNode, round int) error {
	n := len(nodes)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n/2 + 1 {
		i = (i + round) % n
		wg.Go(func() {
			addr := nodes[i].addr
			nodes[i].stop()
			node, err := startRedis(ctx, binary, addr, forgetful)
			if errs[i] = err; err == nil {
				nodes[i] = node
				c.restarted(addr)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// chaosEnd returns err unless it comes from the end of ctx.
func chaosEnd(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return &exitError{exitOSErr, err, "run it again"}
	}
	return nil
}

// config returns the configuration of the workers.
func (c *chaos) config(nodes []*devNode) (*config.Config, error) {
	q := url.Values{"ttl": {chaosTTL.String()}}
	if c.guard {
		q.Set("guard", chaosTTL.String())
	}
	return config.Parse(urlOf(nodes) + "?" + q.Encode())
}

func bootstrapped(ctx context.Context, c *config.Config) error {
	d, err := c.Deployment(ctx)
	if err != nil {
		return err
	}
	return errors.Join(d.Bootstrap(ctx), d.Close())
}

// work takes the lock again and again.
func (c *chaos) work(ctx context.Context, worker int, l locker.Locker) {
	for ctx.Err() == nil {
		// A renewal would soon notice the loss. The lock is held for less than its TTL, so it needs none.
		lease, err := l.Lock(ctx, "chaos", locker.NoRenewal())
		if err != nil {
			pause(ctx, 200*time.Millisecond)
			continue
		}
		c.enter(worker, lease)
		pause(ctx, chaosHold)
		c.leave(worker)
		_ = lease.Unlock(ctx) // it works with a context that has ended
	}
}

// enter notes that a worker has the lock. Another worker whose lease is valid at that time is one too many.
func (c *chaos) enter(worker int, lease locker.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.locks++
	text := ""
	for other, l := range c.holders {
		if l.Err() == nil {
			c.twice++
			text = fmt.Sprintf(", and so has worker %d: TWO HOLDERS", other)
		}
	}
	c.holders[worker] = lease
	c.say("worker %d has the lock%s", worker, text)
	select {
	case c.taken <- struct{}{}:
	default:
	}
}

func (c *chaos) leave(worker int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.holders, worker)
}

func (c *chaos) restarted(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restarts++
	rest := ""
	if c.guard {
		rest = ", and rests"
	}
	c.say("%s was killed, starts again with nothing%s", addr, rest)
}

// say prints what happens. Call it with mu held.
func (c *chaos) say(format string, args ...any) {
	if !c.app.json && !c.app.quiet {
		fmt.Fprintf(c.app.stdout, "%6.1fs  %s\n", time.Since(c.start).Seconds(), fmt.Sprintf(format, args...))
	}
}

// summary prints what was counted, when the workers have ended. With the guard, two holders are a failure.
func (c *chaos) summary() error {
	var code error
	if c.guard && c.twice > 0 {
		code = &exitError{exitSoftware, errors.New("two workers had the lock in spite of the guard"), "please report this"}
	}
	took := time.Since(c.start)
	if c.app.json {
		return errors.Join(c.app.printJSON(struct {
			Guard    bool  `json:"guard"`
			TookMS   int64 `json:"took_ms"`
			Restarts int   `json:"restarts"`
			Locks    int   `json:"locks"`
			Twice    int   `json:"two_holders"`
		}{c.guard, took.Milliseconds(), c.restarts, c.locks, c.twice}), code)
	}
	with, holders := "without the guard", "never two holders"
	if c.guard {
		with = "with the guard"
	}
	if c.twice > 0 {
		holders = "two holders " + times(c.twice)
	}
	fmt.Fprintf(c.app.stdout, "%s, %.0fs: %d restarts, %d locks, %s\n", with, took.Seconds(), c.restarts, c.locks, holders)
	if !c.guard {
		c.app.note("try the same with --guard")
	}
	return code
}

func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return strconv.Itoa(n) + " times"
}

// pause returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
