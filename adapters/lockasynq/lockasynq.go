package lockasynq

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/postpone"
)

// Option changes what [Middleware] does.
type Option func(*options)

type options struct{ delay time.Duration }

// Delay sets for how long a task is put off if its key is locked or the store of the locks is unavailable. Up to half
// of d is added at random. Without it, the time is what the store says of the rest of the lock, but at least a second,
// and 5 s if it says nothing. Use it if tasks are much shorter than the TTL of the locks.
func Delay(d time.Duration) Option { return func(o *options) { o.delay = d } }

// Middleware returns a middleware that processes tasks under locks of l. key returns the name of the lock that a task
// needs, or an empty string if it needs none. The servers need [Config].
func Middleware(l locker.Locker, key func(task *asynq.Task) string, opts ...Option) asynq.MiddlewareFunc {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			for {
				err := postpone.Do(ctx, l, key(task), o.delay, func(ctx context.Context) error {
					return next.ProcessTask(ctx, task)
				})
				if off := (*postpone.Error)(nil); !errors.As(err, &off) || !last(ctx) || !sleep(ctx, off.After) {
					return err
				}
			}
		})
	}
}

// Config returns c with an IsFailure and a RetryDelayFunc that know the tasks that [Middleware] puts off. For other
// tasks they call those of c, or asynq's own.
func Config(c asynq.Config) asynq.Config {
	isFailure, delay := c.IsFailure, c.RetryDelayFunc
	if isFailure == nil {
		isFailure = func(err error) bool { return err != nil }
	}
	if delay == nil {
		delay = asynq.DefaultRetryDelayFunc
	}
	c.IsFailure = func(err error) bool {
		return !errors.As(err, new(*postpone.Error)) && isFailure(err)
	}
	c.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if off := (*postpone.Error)(nil); errors.As(err, &off) {
			return off.After
		}
		return delay(n, err, task)
	}
	return c
}

// last reports whether asynq archives the task of ctx if this attempt returns an error.
func last(ctx context.Context) bool {
	retried, ok := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	return ok && retried >= most
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
