package node

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
)

// A caller that waits inside the driver and cannot leave keeps Close waiting. It must keep nobody else waiting.
func TestCallsDoNotWaitForCloseToHaveWaited(t *testing.T) {
	for name, call := range callsOf {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				n := New(&punctualFake{&fake{answer: silent}, true}, Options{Name: "n1", Timeout: timeout})
				var wg sync.WaitGroup
				defer wg.Wait()
				inside := make(chan error, 1)
				wg.Go(func() { inside <- n.Extend(context.Background(), request("inside")) })
				synctest.Wait()
				wg.Go(func() { _ = n.Close() })
				synctest.Wait()
				start := time.Now()
				if err := call(t.Context(), n); !errors.Is(err, locker.ErrClosed) {
					t.Errorf("%v, want ErrClosed", err)
				}
				if took := time.Since(start); took != 0 {
					t.Errorf("it took %v", took)
				}
				select {
				case err := <-inside:
					t.Errorf("Close did not wait for the caller inside the driver, who has got %v", err)
				default:
				}
			})
		})
	}
}

func TestWaitReturnsWhenTheLastCallHasLeft(t *testing.T) {
	for range 200 {
		var c InFlight
		var wg sync.WaitGroup
		for range 4 {
			c.Enter()
			wg.Go(func() {
				for range 10 {
					c.Enter()
					c.Leave()
				}
				c.Leave()
			})
		}
		c.Wait()
		wg.Wait()
		if n := c.under.Load(); n != 0 {
			t.Fatalf("%d calls are under way", n)
		}
	}
}
