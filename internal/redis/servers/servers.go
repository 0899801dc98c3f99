// Package servers tells tools which Redis servers are behind a configuration. Programs that take locks use
// config.Open.
package servers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/redlock"
	"github.com/golocker/locker/single"
)

// Of validates a *config.Config, reads the files that it names, and opens a driver for each of its servers. It sends
// nothing to them. The caller closes the Deployment. Package config fills it in, which must not export it, and which
// this package cannot import.
var Of func(ctx context.Context, config any) (*Deployment, error)

// Deployment has the servers of a configuration one by one, with all defaults filled in.
type Deployment struct {
	Redlock bool          // the servers are the nodes of a quorum
	Guard   time.Duration // the longest TTL of all locks; 0: there is no restart guard
	// Replicas is how many replicas have to confirm a lock. With 0, none has to.
	Replicas int
	Prefix   string        // of all keys
	TTL      time.Duration // of locks without a TTL of their own
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
