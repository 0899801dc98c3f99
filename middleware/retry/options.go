package retry

import "time"

const (
	// DefaultFor is how long a call is retried without the option [For]. It is longer than the restart or the failover
	// of a server usually takes.
	DefaultFor = time.Minute

	// DefaultBaseDelay is the longest first pause without the option [Backoff].
	DefaultBaseDelay = 50 * time.Millisecond

	// DefaultMaxDelay is the longest pause without the option [Backoff]. A call that does not wait for its turn, see
	// [PerSecond], notices within this time that the store is available again.
	DefaultMaxDelay = 2 * time.Second

	// DefaultPerSecond is the number of retries per second without the option [PerSecond].
	DefaultPerSecond = 100
)

const (
	// floor is the shortest pause. It prevents a busy loop.
	floor = time.Millisecond

	// ghost is how long TryLock may get the answer "held" after a fault because of its own failed attempt. Backends
	// undo that attempt at once, and try again if the store does not answer.
	ghost = 2 * time.Second

	// burst is the time for which unused retries are saved.
	burst = time.Second
)

// Option changes the middleware that [New] returns.
type Option func(*policy)

// policy has the values of the options. It is shared by all calls.
type policy struct {
	limit          time.Duration
	base, maxDelay time.Duration
	perSecond      int
	onHeld         bool
	bucket         *bucket
}

// For sets how long a call is retried. No retry begins later than d after the first fault. If a retried Lock waits for
// another holder, the store has answered, and the time starts again with the next fault. The default, also if d is not
// positive, is [DefaultFor].
func For(d time.Duration) Option { return func(p *policy) { p.limit = d } }

// Backoff sets the pauses. base is the longest pause before the first retry. It doubles with every further retry, up to
// maxDelay. The defaults, also for values that are not positive, are [DefaultBaseDelay] and [DefaultMaxDelay].
func Backoff(base, maxDelay time.Duration) Option {
	return func(p *policy) { p.base, p.maxDelay = base, maxDelay }
}

// PerSecond sets how many retries per second all calls together may make, on all Lockers that one middleware wraps.
// After a second without retries, that many may be made at once. Further retries wait for their turn. If the turn would
// come after the time of the call is over, the call fails at once. In an outage, the store thus gets n attempts and
// those of new calls, however many callers wait. The default, also if n is not positive, is [DefaultPerSecond].
//
// A throttle that drops retries if too many calls fail, such as gRPC's, was rejected. In an outage all calls fail, and
// even callers that have time to wait would then not be retried.
func PerSecond(n int) Option { return func(p *policy) { p.perSecond = n } }

// OnHeld makes TryLock try again while another owner holds the lock. The pauses and the time limit are the same as
// after a fault, but these retries are not those of [PerSecond]. Lock with a context that ends soon is usually better,
// because Lock waits in the order of arrival and is notified, while TryLock polls.
func OnHeld() Option { return func(p *policy) { p.onHeld = true } }
