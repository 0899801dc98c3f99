//go:build !unix

package supervise

import (
	"context"
	"errors"
	"runtime"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
)

// Run needs process groups and signals.
func Run(context.Context, *Options, func() (locker.Locker, error)) error {
	return exit.With(exit.OSErr, errors.New("locker run does not work on "+runtime.GOOS), "use the library: locker.Do")
}

// Acquire needs signals.
func Acquire(context.Context, *Options, func() (locker.Locker, error)) error {
	return exit.With(exit.OSErr, errors.New("locker acquire does not work on "+runtime.GOOS),
		"use the library: transfer.Export")
}

// Elect needs them, too.
func Elect(context.Context, *Options, func() (locker.Locker, error)) error {
	return exit.With(exit.OSErr, errors.New("locker elect does not work on "+runtime.GOOS),
		"use the library: election.Run")
}

// Main does nothing: there are no such processes.
func Main([]string) {}
