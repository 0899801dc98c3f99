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
}

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

func newOptions(opts []Option) options {
	o := options{ttl: DefaultTTL}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

func (o *options) validate(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("the key is empty")
	case len(key) > MaxKey:
		return fmt.Errorf("the key has %d bytes, more than the %d allowed", len(key), MaxKey)
	case o.ttl < MinTTL:
		return fmt.Errorf("TTL %v is below the minimum of %v", o.ttl, MinTTL)
	case o.ttl > MaxTTL:
		return fmt.Errorf("TTL %v is above the maximum of %v", o.ttl, MaxTTL)
	}
	return nil
}
