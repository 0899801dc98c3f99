package nats

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker"
)

// job is a clean-up that is repeated until it succeeds, or until its time is over: then the lock has ended by itself.
type job struct {
	do    func(ctx context.Context) error
	until time.Time
}

const (
	// maxJobs bounds the clean-ups that wait for a server that is down. Locks of those beyond end with their TTL.
	maxJobs = 10_000

	// jobTimeout bounds one try. While the server hangs, the others wait for that long.
	jobTimeout = time.Second

	// closeTimeout bounds the last round of tries, which Close waits for.
	closeTimeout = 250 * time.Millisecond
)

// later does j in the background.
func (b *store) later(j job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.jobs) >= maxJobs || b.closed && len(b.jobs) == 0 {
		return
	}
	if b.jobs = append(b.jobs, j); len(b.jobs) == 1 {
		b.working.Go(b.work)
	}
}

// work does the jobs, in rounds. It ends when there are none. A job stays in the list while it is tried, so that there
// is one goroutine.
func (b *store) work() {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		closing := b.usable() != nil
		limit := time.Now().Add(closeTimeout)
		b.mu.Lock()
		round := append([]job(nil), b.jobs...)
		b.mu.Unlock()
		done := make([]bool, len(round))
		failing := false // the server does not answer: do not wait for each
		for i, j := range round {
			switch {
			case closing && time.Now().After(limit), !closing && time.Now().After(j.until):
				done[i] = true
			case !failing:
				done[i] = b.try(j, closing)
				failing = !done[i]
			}
		}
		b.mu.Lock()
		rest := b.jobs[len(round):]
		for i := len(round) - 1; i >= 0; i-- {
			if !done[i] {
				rest = append([]job{round[i]}, rest...)
			}
		}
		b.jobs = rest
		if closing {
			b.jobs = nil
		}
		over := len(b.jobs) == 0
		b.mu.Unlock()
		if over {
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-b.closing:
			t.Stop()
		}
	}
}

// try does j once, and reports whether it need not be repeated.
func (b *store) try(j job, closing bool) bool {
	timeout := jobTimeout
	if closing {
		timeout = closeTimeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	err := j.do(ctx)
	return err == nil || !errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, locker.ErrClosed)
}
