package redsync

import (
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/compat/redsync/redis"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/redlock"
	"github.com/golocker/locker/single"
)

// Redsync makes mutexes on one Redis server, or on several independent ones.
type Redsync struct {
	locker *locker.Client
	pools  int
}

// New returns a Redsync whose mutexes are on the servers of pools: with one pool as those of package single, and with
// several as those of package redlock. New asks no server. If the pools cannot be used, because there are none for
// example, each Lock fails with the reason.
//
// Make one Redsync and keep it, because callers that wait share a connection for messages. It need not be closed. Its
// connection is closed when nobody has waited for some seconds.
func New(pools ...redis.Pool) *Redsync { return open(pools) }

func open(pools []redis.Pool, opts ...redlock.Option) *Redsync {
	if len(pools) == 1 {
		return &Redsync{single.New(pools[0].Driver(), single.Prefix("")), 1}
	}
	ds := make([]drivers.Driver, len(pools))
	for i, pool := range pools {
		ds[i] = pool.Driver()
	}
	return &Redsync{redlock.New(ds, append(opts, redlock.Prefix(""))...), len(pools)}
}

// Locker returns the Client behind the mutexes, for code that has moved. Locks of the same name exclude each other,
// whichever way they are acquired. Closing the Client ends all locks of the Redsync as lost. go-redsync has no such
// method.
func (r *Redsync) Locker() *locker.Client { return r.locker }

// An Option changes a Mutex that [Redsync.NewMutex] makes.
type Option interface {
	Apply(m *Mutex)
}

// OptionFunc is a function as an Option.
type OptionFunc func(m *Mutex)

// Apply calls f.
func (f OptionFunc) Apply(m *Mutex) { f(m) }

// NewMutex returns the mutex of name, which is also its key in Redis. It asks no server.
func (r *Redsync) NewMutex(name string, options ...Option) *Mutex {
	m := &Mutex{
		redsync:       r,
		name:          name,
		expiry:        8 * time.Second,
		tries:         32,
		delay:         func(int) time.Duration { return 50*time.Millisecond + rand.N(200*time.Millisecond) },
		driftFactor:   leaseDrift,
		timeoutFactor: 0.05,
	}
	for _, o := range options {
		o.Apply(m)
	}
	return m
}

// WithExpiry sets after how long the lock ends, unless it is extended: 8 s by default. It must be between
// locker.MinTTL, 10 ms, and locker.MaxTTL, a day. Otherwise Lock fails with an error that matches locker.ErrInvalid.
func WithExpiry(expiry time.Duration) Option {
	return OptionFunc(func(m *Mutex) { m.expiry = expiry })
}

// WithTries sets how many attempts Lock makes: 32 by default.
func WithTries(tries int) Option {
	return OptionFunc(func(m *Mutex) { m.tries = tries })
}

// WithRetryDelay sets the time between two attempts. By default it is drawn between 50 and 250 ms. Waiters that are in
// the queue get the lock sooner than that.
func WithRetryDelay(delay time.Duration) Option {
	return WithRetryDelayFunc(func(int) time.Duration { return delay })
}

// WithRetryDelayFunc sets a function that returns the time between two attempts.
func WithRetryDelayFunc(delayFunc DelayFunc) Option {
	return OptionFunc(func(m *Mutex) { m.delay = delayFunc })
}

// WithDriftFactor sets which part of the expiry is allowed for clocks that run at different speeds. 0.01 is the
// default, and the least: a smaller part has no effect.
func WithDriftFactor(factor float64) Option {
	return OptionFunc(func(m *Mutex) { m.driftFactor = factor })
}

// WithTimeoutFactor sets which part of the expiry an attempt may take: 0.05 by default.
func WithTimeoutFactor(factor float64) Option {
	return OptionFunc(func(m *Mutex) { m.timeoutFactor = factor })
}

// WithValue makes a mutex that stands for a lock that was acquired elsewhere, by a Mutex whose Value was v. Unlock
// releases that lock, and Valid asks for it. Extend fails with an error that matches errors.ErrUnsupported: only the
// Mutex that has acquired the lock can extend it. v may also be what go-redsync's own generator has made, in a program
// that has not moved yet.
func WithValue(v string) Option {
	return OptionFunc(func(m *Mutex) { m.value = v })
}

// WithSetNXOnExtend makes Extend acquire the lock again if it is over and nobody has it. Somebody else may have had it
// in between. The lock then has another value. Several servers need no such option to survive that one of them has
// forgotten the lock: Extend gives it back to that server.
func WithSetNXOnExtend() Option {
	return OptionFunc(func(m *Mutex) { m.relocks = true })
}

// WithFailFast has no effect: no call waits for more servers than it needs.
func WithFailFast(bool) Option { return OptionFunc(func(*Mutex) {}) }

// WithShufflePools has no effect. It changes nothing that a caller could see.
func WithShufflePools(bool) Option { return OptionFunc(func(*Mutex) {}) }
