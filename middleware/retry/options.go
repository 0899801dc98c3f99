package retry

import "time"

const (
	// DefaultFor is for how long one call is retried unless [For] says otherwise: longer than a server takes to restart, or
	// to be failed over.
	DefaultFor = time.Minute
	// DefaultBase is the longest first pause unless [Backoff] says otherwise.
	DefaultBase = 50 * time.Millisecond
	// DefaultMost is the longest pause unless [Backoff] says otherwise, and so how late a call notices, at most, that the
	// store is back, while the budget lasts.
	DefaultMost = 2 * time.Second
	// DefaultBudget is the number of retries per second unless [Budget] says otherwise.
	DefaultBudget = 100
)

const (
	// floor keeps a draw of nearly nothing from being a busy loop.
	floor = time.Millisecond
	// ghost is for how long TryLock may be told "held" after a fault because of its own failed attempt: backends on Redis
	// undo that at once, or, if the server does not answer, every second.
	ghost = 2 * time.Second
	// burst is for how long a budget that is not used is saved up.
	burst = time.Second
)

// Option changes what [New] builds.
type Option func(*policy)

// policy is what the options say. It is shared by all calls.
type policy struct {
	limit      time.Duration
	base, most time.Duration
	perSecond  int
	onHeld     bool
	budget     *budget
}

// For bounds for how long one call goes on after its first fault: no retry begins later than that. If a Lock that is
// retried gets to wait for another holder, the store has answered, and the time begins anew with the next fault. Zero,
// less, or not given: [DefaultFor].
func For(d time.Duration) Option { return func(p *policy) { p.limit = d } }

// Backoff sets the pauses: the longest that may be drawn before the first retry, which doubles with every further one,
// and what it grows to at most. Zero, less, or not given: [DefaultBase] and [DefaultMost].
func Backoff(base, most time.Duration) Option {
	return func(p *policy) { p.base, p.most = base, most }
}

// Budget is how many retries per second all calls together may make, of all Lockers that one middleware was put around.
// That many may come at once after a second without any. A retry beyond that waits for its turn; if its turn would come
// after the time of its call is over, the call gives up. So an outage costs the store that many attempts per second, and
// as many as there are new calls, however many callers wait for its end. Zero, less, or not given: [DefaultBudget].
//
// A throttle that drops retries instead, by the share of calls that fail, as gRPC's does, was rejected: in an outage all
// fail, and callers who have the time to wait would not get to.
func Budget(perSecond int) Option { return func(p *policy) { p.perSecond = perSecond } }

// OnHeld makes TryLock, which asks once, ask again while another owner holds the lock, with the same pauses and within the
// same time, but not from the budget. Prefer Lock with a context that ends soon: it waits in a queue, where this polls,
// and so comes first where this comes when it happens to ask.
func OnHeld() Option { return func(p *policy) { p.onHeld = true } }
