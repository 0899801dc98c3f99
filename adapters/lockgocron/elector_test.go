package lockgocron_test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/golocker/locker/adapters/lockgocron"
	"github.com/golocker/locker/election"
)

// The leader runs the jobs, and another one when it resigns. If the other one's clock has not reached a tick that the
// first has run, the tick runs twice: an election is no claim of a tick.
func TestByElection(t *testing.T) {
	withFleet(t, func(w *fleet) {
		ctx, cancel := context.WithCancel(w.Context())
		var elections sync.WaitGroup
		var all []gocron.Scheduler
		var by [2]int // how often each has run the job
		begin := time.Now()
		for n := range by {
			e := election.New(w.client(), "scheduler", election.Config{
				OnElected: func(ctx context.Context, _ election.Term) error {
					<-ctx.Done()
					return nil
				},
			})
			elections.Go(func() {
				if err := e.Run(ctx); err != nil {
					w.Error(err)
				}
			})
			time.Sleep(time.Second) // the first one leads
			c := newClock(time.Duration(-n)*200*time.Millisecond, 0)
			s := w.scheduler(c, gocron.WithDistributedElector(lockgocron.ByElection(e)), minutely(), func() {
				tick := c.Now().Round(time.Minute)
				w.runs(tick)
				w.mu.Lock()
				by[n]++
				w.mu.Unlock()
				if n == 0 && tick.Sub(begin) > 10*time.Minute {
					if err := e.Resign(ctx); err != nil {
						w.Error(err)
					}
				}
			})
			s.Start()
			all = append(all, s)
		}
		time.Sleep(10*time.Minute + 20*time.Second)
		w.mu.Lock()
		if by != [2]int{10, 0} {
			w.Errorf("under one leader: %v", by)
		}
		w.mu.Unlock()
		time.Sleep(10 * time.Minute)
		w.stop(all...)
		cancel()
		elections.Wait()
		if by != [2]int{11, 10} || !maps.Equal(w.times(), map[int]int{1: 19, 2: 1}) {
			w.Errorf("under two leaders: %v, %v", by, w.times())
		}
	})
}
