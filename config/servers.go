package config

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// Deployment has the servers of a Config one by one, with all defaults filled in. It is for tools that examine the
// servers. Programs that take locks use Open.
type Deployment struct {
	Redlock bool          // the servers are the nodes of a quorum
	FIFO    bool          // waiters queue up on the server
	Guard   time.Duration // the longest TTL of all locks; 0: there is no restart guard
	// Replicas is how many replicas have to confirm a lock. With 0, none has to.
	Replicas int
	Prefix   string
	TTL      time.Duration
	Timeout  time.Duration // of one exchange
	Budget   time.Duration // of one operation on a Redlock
	Servers  []Server      // none if the backend has no Redis servers
}

// Server is one Redis server.
type Server struct {
	Name     string // its name in errors
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

// Deployment validates c, reads the files that it names, and opens a driver for each of its servers. It sends nothing
// to the servers. The caller closes the Deployment.
func (c *Config) Deployment(ctx context.Context) (*Deployment, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	own, d, k := c.opening(), new(Deployment), backend(c.Backend)
	if err := own.readFiles(k); err != nil {
		return nil, err
	}
	if k.Deployment != nil {
		var err error
		if d, err = k.Deployment(ctx, own); err != nil {
			return nil, err
		}
	}
	d.Prefix, d.TTL = own.prefix(), own.TTL.or(locker.DefaultTTL)
	return d, nil
}
