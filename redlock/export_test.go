package redlock

import (
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
)

// NewBackend makes what New makes a Client of.
func NewBackend(ds []drivers.Driver, opts ...Option) (backend.Backend, error) {
	return newBackend(ds, opts)
}
