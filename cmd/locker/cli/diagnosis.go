package cli

import (
	"context"
	"errors"

	"github.com/golocker/locker/cmd/locker/internal/doctor"
	"github.com/golocker/locker/drivers"
)

// diagnosis returns advice about a server that cannot be used. It may contact the server, for two seconds at most.
func (a *app) diagnosis(err error) string {
	if a.used == nil {
		return nextDiagnosis
	}
	ctx := context.Background()
	d, openErr := a.used.Deployment(ctx)
	if openErr != nil || len(d.Servers) != 1 {
		return nextDiagnosis
	}
	defer func() { _ = d.Close() }()
	s := d.Servers[0]
	if c, ok := doctor.OfSentinel(s.Dial, err); ok {
		return c.Fix
	}
	var e drivers.ServerError
	if errors.As(err, &e) {
		return doctor.Refusal(e, s.Username).Fix
	}
	if c, ok := doctor.ConnectError(s.Dial, err); ok {
		return c.Fix
	}
	if c, ok := doctor.Probe(ctx, s.Dial, s.Username); ok {
		return c.Text + ": " + c.Fix
	}
	return "is the server up, and does the network let it answer? " + nextDiagnosis
}

// refused reports whether a server has answered with an error.
func refused(err error) bool {
	ok := errors.As(err, new(drivers.ServerError))
	return ok
}
