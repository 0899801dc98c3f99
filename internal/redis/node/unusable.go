package node

import (
	"context"
	"errors"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/inspect"
)

// Unusable returns the Backend of a Client with options that cannot be used, for constructors, which have no error to
// return. Every call fails with why. Closing it closes ds.
func Unusable(why error, ds ...drivers.Driver) backend.Backend { return &unusable{why, ds} }

type unusable struct {
	why error
	ds  []drivers.Driver
}

func (r *unusable) Acquire(context.Context, backend.Request) (backend.Grant, error) {
	return backend.Grant{}, r.why
}
func (r *unusable) Extend(context.Context, backend.Request) error  { return r.why }
func (r *unusable) Release(context.Context, backend.Request) error { return r.why }

func (r *unusable) Export(context.Context, backend.Request, string) error { return r.why }
func (r *unusable) Resume(context.Context, backend.Request, string) (backend.Grant, error) {
	return backend.Grant{}, r.why
}

func (r *unusable) Inspect(context.Context, string) (inspect.Inspection, error) {
	return inspect.Inspection{State: inspect.Unknown}, r.why
}

func (r *unusable) ForceRelease(context.Context, string, string) (inspect.Inspection, error) {
	return inspect.Inspection{State: inspect.Unknown}, r.why
}
func (r *unusable) RaiseFences(context.Context, uint64) error { return r.why }

func (r *unusable) Close() error {
	var errs []error
	for _, d := range r.ds {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
