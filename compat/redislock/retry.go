package redislock

import (
	"sync/atomic"
	"time"
)

// RetryStrategy says how long Obtain waits for a lock that somebody else has.
type RetryStrategy interface {
	// NextBackoff returns the time until the next attempt. If it is less than 1, there is none.
	NextBackoff() time.Duration
}

// linear is a strategy whose attempts are the same time apart.
type linear time.Duration

func (d linear) NextBackoff() time.Duration { return time.Duration(d) }

// NoRetry is the strategy of one attempt, which is the default.
func NoRetry() RetryStrategy { return linear(0) }

// LinearBackoff returns a strategy whose attempts are backoff apart.
func LinearBackoff(backoff time.Duration) RetryStrategy { return linear(backoff) }

// exponential is a strategy whose attempts are ever farther apart.
type exponential struct {
	made     atomic.Int64
	min, max time.Duration
}

// longest is the exponent of the longest pause without a limit.
const longest = 26

func (e *exponential) NextBackoff() time.Duration {
	n := min(e.made.Add(1)+1, longest)
	d := max(e.min, time.Millisecond<<n)
	if e.max != 0 {
		d = max(e.min, min(e.max, d))
	}
	return d
}

// ExponentialBackoff returns a strategy whose pauses are 4, 8, 16 … ms, but not below minimum and, unless that is 0,
// not above maximum.
func ExponentialBackoff(minimum, maximum time.Duration) RetryStrategy {
	return &exponential{min: minimum, max: maximum}
}

// limited is a strategy that ends.
type limited struct {
	of   RetryStrategy
	left atomic.Int64
}

func (l *limited) NextBackoff() time.Duration {
	if l.left.Add(-1) < 0 {
		return 0
	}
	return l.of.NextBackoff()
}

// LimitRetry returns a strategy that ends after maximum retries of s. Make a new one for each Obtain, because what is
// left is counted over all of them.
func LimitRetry(s RetryStrategy, maximum int) RetryStrategy {
	l := &limited{of: s}
	l.left.Store(int64(maximum))
	return l
}
