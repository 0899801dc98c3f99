package redlock

import (
	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// NewBackend makes what New makes a Client of.
func NewBackend(ds []drivers.Driver, opts ...Option) (locker.Backend, error) {
	return newBackend(ds, opts)
}
