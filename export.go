package locker

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/passing"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/internal/core/tick"
)

var (
	errNoExporter = fmt.Errorf("the store cannot pass a lock on to another process: %w", errors.ErrUnsupported)
	errPart       = fmt.Errorf("only a lease of Lock or TryLock can be passed on: permits, shared locks, terms of an "+
		"election, ticks and several locks at once cannot: %w", errors.ErrUnsupported)
)

// Exportable returns why the lock cannot be passed on to another process, or nil. Package transfer looks for it behind
// middleware, as [Verify] looks for the lease.
func (l *lease) Exportable() error {
	if err := l.Err(); err != nil {
		return err
	}
	l.grant.mu.Lock()
	part := l.part
	l.grant.mu.Unlock()
	switch {
	case !l.grant.client.can.Export:
		return errNoExporter
	case part || l.grant.req.Group != nil:
		return errPart
	}
	return nil
}

// exporting returns the request that passes the lock on as x says, instead of releasing it.
func (l *lease) exporting(x *passing.Export) func(ctx context.Context, req backend.Request) error {
	return func(ctx context.Context, req backend.Request) error {
		e, ok := l.grant.client.backend.(backend.Exporter)
		if !ok {
			return errNoExporter
		}
		req.TTL, req.Keep = max(cmp.Or(x.TTL, l.grant.currentTTL()), req.Keep), 0
		l.grant.mayBelong(x.To)
		err := e.Export(ctx, req, x.To)
		if err == nil {
			x.Pass()
		}
		return err
	}
}

// resume makes one attempt to acquire the lock of req by what r says of it.
func (c *Client) resume(ctx context.Context, r *passing.Resumption, req backend.Request) (backend.Grant, error) {
	e, ok := c.backend.(backend.Exporter)
	switch {
	case !ok:
		return backend.Grant{}, errNoExporter
	case req.Group != nil || isPart(ctx, req.Key):
		return backend.Grant{}, errPart
	}
	r.Send()
	g, err := e.Resume(ctx, req, r.From)
	if err == nil {
		r.Grant()
	}
	return g, err
}

// isPart reports whether a lock that is acquired with ctx belongs to something else, such as a permit or an AllLease.
func isPart(ctx context.Context, key string) bool {
	return several.CallFrom(ctx) != nil || several.KindFrom(ctx) != "" || tick.From(ctx, key) != nil
}
