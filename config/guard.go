package config

import (
	"context"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/redlock"
	"github.com/golocker/locker/single"
)

// checkGuard reports a restart guard that cannot work, or that refuses each lock with the TTL of c.
func (c *Config) checkGuard(s onRedis, report Report) {
	guard := s.guard()
	switch g := time.Duration(guard); {
	case g <= 0:
	case g < locker.MinTTL:
		report(c.Backend+".guard", fmt.Errorf("%v is below the minimum of %v", g, locker.MinTTL))
	case g > locker.MaxTTL:
		report(c.Backend+".guard", fmt.Errorf("%v is above the maximum of %v, which no TTL exceeds", g, locker.MaxTTL))
	case c.TTL > guard:
		report(c.Backend+".guard", fmt.Errorf("%v is less than the ttl of %v: give the longest TTL of all locks", g,
			time.Duration(c.TTL)))
	}
}

// Bootstrap says that the servers have forgotten no lock that may still be held, because they are new, for example.
// With a restart guard they then grant locks at once; see redlock.Bootstrap. Without a guard, the error matches
// locker.ErrInvalid.
func (d *Deployment) Bootstrap(ctx context.Context) error {
	var ds []drivers.Driver
	var names []string
	for _, s := range d.Servers {
		ds, names = append(ds, s.Driver), append(names, s.Name)
	}
	if d.Redlock {
		return redlock.Bootstrap(ctx, ds, redlock.Prefix(d.Prefix), redlock.Names(names...), redlock.Timeout(d.Timeout),
			redlock.Guard(d.Guard))
	}
	if len(ds) != 1 {
		return fmt.Errorf("%w: there is no Redis server", locker.ErrInvalid)
	}
	return single.Bootstrap(ctx, ds[0], single.Prefix(d.Prefix), single.Name(names[0]), single.Timeout(d.Timeout),
		single.Guard(d.Guard))
}
