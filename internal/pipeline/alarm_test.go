package pipeline

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
)

// Each caller waits for as long as it wants to, and no longer, although they share a timer.
func TestCallersWaitAsLongAsTheyWant(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		var callers sync.WaitGroup
		start := time.Now()
		wait := func(ctx context.Context, limit, want time.Duration) {
			callers.Go(func() {
				begun := time.Since(start)
				_, err := p.Do(ctx, get, limit, nil)
				if got := time.Since(start) - begun; err == nil || got != want {
					t.Errorf("begun after %v, with a limit of %v, one waits for %v, want %v: %v", begun, limit, got, want, err)
				}
				if want == limit && !strings.Contains(err.Error(), "no answer within "+limit.String()) {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for _, ms := range []time.Duration{3000, 1000, 2000, 1000, 4000, 1500, 1500} {
			wait(context.Background(), ms*time.Millisecond, ms*time.Millisecond)
			time.Sleep(100 * time.Millisecond)
		}
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		wait(short, time.Second, 200*time.Millisecond)
		callers.Wait()
		cancel()
		close(wake)
	})
}

// An answer ends the wait, and the timer is not set again when nobody waits.
func TestNobodyWaitsAfterTheAnswer(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		d.will(slowly(time.Millisecond, ok))
		var callers sync.WaitGroup
		for i := range 300 {
			callers.Go(func() {
				for range 50 {
					if _, err := p.Do(context.Background(), get, time.Duration(1+i%3)*time.Second, nil); err != nil {
						t.Error(err)
					}
				}
			})
		}
		callers.Wait()
		p.mu.Lock()
		if p.callers.first != nil {
			t.Error("somebody waits")
		}
		p.mu.Unlock()
		time.Sleep(timeout)
		p.mu.Lock()
		if !p.callers.rings.IsZero() {
			t.Error("the timer is set")
		}
		p.mu.Unlock()
	})
}

// A caller that has left is not woken, whether its command was taken back or goes on without it.
func TestWhoHasLeftDoesNotWait(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		late := make(chan struct{}, maxSenders)
		for i := range maxSenders + 3 { // the last three are taken back
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := p.Do(ctx, get, time.Second, func(drivers.Reply, error) { late <- struct{}{} })
			cancel()
			if err == nil {
				t.Errorf("call %d was answered", i)
			}
		}
		p.mu.Lock()
		if p.callers.first != nil {
			t.Error("somebody waits")
		}
		p.mu.Unlock()
		time.Sleep(2 * time.Second)
		close(wake)
		for range maxSenders {
			<-late
		}
	})
}
