package locker

import (
	"fmt"
	"time"
)

const (
	// DefaultTTL is the lease time without a [TTL] option.
	DefaultTTL = 10 * time.Second
	// MinTTL is the shortest lease time: below it the allowance for drift (2 ms) and one round trip leave nothing.
	MinTTL = 10 * time.Millisecond
	// MaxTTL is the longest lease time. A longer one is a mistake: a crashed holder would block the lock for as long,
	// and a living one renews. Fencing counters live as long.
	MaxTTL = 24 * time.Hour
	// DefaultPatience is how long a waiting Lock bears a store that fails without a [Patience] option.
	DefaultPatience = 6 * time.Second
	// MaxKey is the longest key, in bytes.
	MaxKey = 64 << 10
)

// Option changes one call of Lock or TryLock; see [Defaults] for all calls.
type Option func(*options)

type options struct {
	ttl       time.Duration
	noRenewal bool
	maxHold   time.Duration
	minHold   time.Duration
	patience  time.Duration
}

var defaultOptions = options{ttl: DefaultTTL, patience: DefaultPatience}

// TTL sets the lease time: how long the lock stays taken after its holder has died. From [MinTTL] to [MaxTTL],
// [DefaultTTL] if not given; anything else makes the call fail before it sends anything.
func TTL(d time.Duration) Option {
	return func(o *options) { o.ttl = d }
}

// NoRenewal leaves the lease to end after its TTL unless Extend is called. Without it a lease is renewed every third
// of its TTL for as long as it is held.
func NoRenewal() Option {
	return func(o *options) { o.noRenewal = true }
}

// MaxHold caps how long the lock is held: d after it was acquired, counted from when the request was sent, the lease ends
// as lost, with the reason [LostMaxHold]. Done closes by then (a few milliseconds before, as it does before Until, which
// never lies later), and renewals end. It is a bound for work that hangs; 0, the default, means none. Less than [MinTTL]
// makes the call fail before it sends anything.
//
// The lock itself is not released then, because the code it protects may still be at work: that has the rest of the TTL
// to stop. Unlock still releases it, and its nil means what it does otherwise.
func MaxHold(d time.Duration) Option {
	return func(o *options) { o.maxHold = d }
}

// MinHold keeps the lock taken for at least d after it was acquired, counted from when the request was sent: Unlock
// before that ends the lease at once and leaves the lock taken, by nobody, for the rest of the time. The store sees to it,
// so the process may exit after Unlock. From 0, the default, to [MaxTTL]; anything else makes the call fail before it sends
// anything.
//
// It is for jobs that start on several machines at the same time of day and are done sooner than their clocks differ:
// without it the machine whose clock is behind finds the lock free again, and does the job once more. It changes nothing
// for a lease that is lost: that lock ends with its TTL.
func MinHold(d time.Duration) Option {
	return func(o *options) { o.minHold = d }
}

// Patience sets how long Lock, once it waits for a lock that it has seen held, bears a store that cannot be reached, does
// not answer or refuses: d after the first contact that failed it reports that, unless the store has answered in between.
// From 0, which means that the first failure is reported; [DefaultPatience] if not given; less than 0 makes the call fail
// before it sends anything. It changes nothing for TryLock, nor for a Lock that finds the store down from the start:
// both report that at once.
func Patience(d time.Duration) Option {
	return func(o *options) { o.patience = d }
}

func newOptions(opts []Option) options {
	if len(opts) == 0 {
		return defaultOptions
	}
	o := new(options) // an Option might keep it, so it is on the heap
	*o = defaultOptions
	for _, opt := range opts {
		opt(o)
	}
	return *o
}

func (o *options) validate(key string) error {
	switch {
	case key == "":
		return invalid("the key is empty")
	case len(key) > MaxKey:
		return invalid("the key has %d bytes, more than the %d allowed", len(key), MaxKey)
	case o.ttl < MinTTL:
		return invalid("TTL %v is below the minimum of %v", o.ttl, MinTTL)
	case o.ttl > MaxTTL:
		return invalid("TTL %v is above the maximum of %v", o.ttl, MaxTTL)
	case o.maxHold < 0:
		return invalid("MaxHold %v is negative", o.maxHold)
	case o.maxHold > 0 && o.maxHold < MinTTL:
		return invalid("MaxHold %v is below the minimum of %v", o.maxHold, MinTTL)
	case o.minHold < 0:
		return invalid("MinHold %v is negative", o.minHold)
	case o.patience < 0:
		return invalid("Patience %v is negative", o.patience)
	case o.minHold > MaxTTL:
		return invalid("MinHold %v is above the maximum of %v", o.minHold, MaxTTL)
	}
	return nil
}

// invalid makes an error that matches ErrInvalid.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
