package election_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/election"
)

// A leader that is not healthy hands on, and does not campaign before it is healthy again.
func TestUnhealthyLeaderHandsOn(t *testing.T) {
	withHarness(t, func(o *harness) {
		unhealthy := errors.New("no connection to the database")
		var health atomic.Pointer[error]
		a := o.run("a", nil, func(c *election.Config) {
			c.HealthInterval = time.Second
			c.Healthy = func(context.Context) error {
				if err := health.Load(); err != nil {
					return *err
				}
				return nil
			}
		})
		b := o.run("b", nil)
		time.Sleep(10500 * time.Millisecond)
		o.want("a leads", len(o.is("elected", "a")) == 1 && len(o.is("demoted", "a")) == 0)
		health.Store(&unhealthy)
		time.Sleep(time.Second)
		cause := o.last("demoted", "a").cause
		o.want("the cause says why", errors.Is(cause, election.ErrUnhealthy) && errors.Is(cause, unhealthy))
		o.want("b leads", len(o.is("elected", "b")) == 1)
		time.Sleep(10 * time.Second)
		o.want("it was reported once", len(o.reported()) == 1 && errors.Is(o.reported()[0], unhealthy))
		o.ends(b)
		time.Sleep(10 * time.Second)
		o.want("a does not campaign", len(o.is("elected", "a")) == 1)
		health.Store(nil)
		time.Sleep(2 * time.Second)
		o.want("a leads again", len(o.is("elected", "a")) == 2)
		o.ends(a)
	})
}

// A candidate that is not healthy leaves the queue, and one that was never healthy does not enter it.
func TestUnhealthyCandidateIsNotElected(t *testing.T) {
	withHarness(t, func(o *harness) {
		var unhealthy atomic.Bool
		a, b := o.run("a", nil), o.run("b", nil, func(c *election.Config) {
			c.HealthInterval = time.Second
			c.Healthy = func(context.Context) error {
				if unhealthy.Load() {
					return errors.New("unhealthy")
				}
				return nil
			}
		})
		c := o.run("c", nil, func(c *election.Config) {
			c.Healthy = func(context.Context) error { return errors.New("always") }
		})
		time.Sleep(10 * time.Second)
		unhealthy.Store(true)
		time.Sleep(2 * time.Second)
		o.ends(a)
		synctest.Wait()
		o.want("nobody leads", len(o.is("elected", "b"))+len(o.is("elected", "c")) == 0)
		unhealthy.Store(false)
		time.Sleep(2 * time.Second)
		o.want("b leads", len(o.is("elected", "b")) == 1)
		o.ends(b, c)
	})
}

// A check that hangs counts as failed after its interval, whether it observes its context or not.
func TestHealthCheckHangs(t *testing.T) {
	withHarness(t, func(o *harness) {
		hang, free := make(chan struct{}), make(chan struct{})
		a := o.run("a", nil, func(c *election.Config) {
			c.HealthInterval = time.Second
			c.Healthy = func(context.Context) error {
				select {
				case <-hang:
					<-free
				default:
				}
				return nil
			}
		})
		time.Sleep(10 * time.Second)
		close(hang)
		time.Sleep(3 * time.Second)
		o.want("a is demoted", errors.Is(o.last("demoted", "a").cause, election.ErrUnhealthy))
		time.Sleep(time.Minute)
		o.want("it was reported once", len(o.reported()) == 1)
		o.want("it does not lead", len(o.is("elected", "a")) == 1)
		close(free)
		time.Sleep(3 * time.Second)
		o.want("a leads again", len(o.is("elected", "a")) == 2)
		o.ends(a)
	})
}
