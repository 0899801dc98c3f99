package config

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/redlock"
	"github.com/golocker/locker/single"
)

// Deployment is what a Config names, server by server, with all defaults filled in: for tools that look at the servers by
// themselves. Programs that lock use Open.
type Deployment struct {
	Redlock bool
	Prefix  string
	TTL     time.Duration
	Timeout time.Duration // of one exchange
	Budget  time.Duration // of one operation on a Redlock
	Servers []Server      // none for memory
}

// Server is one Redis server.
type Server struct {
	Name     string // what errors call it
	Username string
	Driver   drivers.Driver
	Dial     drivers.Config // how to connect without the driver; has neither user nor password
}

// Close closes the drivers.
func (d *Deployment) Close() error {
	var errs []error
	for _, s := range d.Servers {
		errs = append(errs, s.Driver.Close())
	}
	return errors.Join(errs...)
}

// Deployment validates c and opens a driver for each of the servers that it names. Unlike Open it asks the servers nothing,
// so that one that is given twice is no error. Close the Deployment.
func (c *Config) Deployment(ctx context.Context) (*Deployment, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	d := &Deployment{
		Redlock: c.Backend == backendRedlock, Prefix: single.DefaultPrefix, TTL: orElse(c.TTL, locker.DefaultTTL),
		Timeout: drivers.DefaultTimeout, Budget: orElse(c.Redlock.Budget, redlock.DefaultBudget),
	}
	if c.Prefix != nil {
		d.Prefix = *c.Prefix
	}
	var problems []error
	switch c.Backend {
	case backendRedis:
		d.Timeout = orElse(c.Redis.Timeout, d.Timeout)
		s, errs := c.Redis.open(ctx, func(name string) string { return "redis." + name })
		if problems = errs; errs == nil {
			d.Servers = append(d.Servers, s)
		}
	case backendRedlock:
		d.Timeout = orElse(c.Redlock.Timeout, d.Timeout)
		d.Servers, problems = c.Redlock.openServers(ctx)
	}
	if problems != nil {
		_ = d.Close()
		return nil, errors.Join(problems...)
	}
	return d, nil
}

func orElse(d Duration, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return time.Duration(d)
}
