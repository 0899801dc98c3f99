//go:build !unix

package cli

import (
	"context"
	"errors"
	"runtime"
)

// run needs process groups and signals.
func (a *app) run(context.Context, *runOptions) error {
	return &exitError{exitOSErr, errors.New("locker run does not work on " + runtime.GOOS),
		"use the library: locker.Do"}
}

// elect needs them, too.
func (a *app) elect(context.Context, *runOptions) error {
	return &exitError{exitOSErr, errors.New("locker elect does not work on " + runtime.GOOS),
		"use the library: election.Run"}
}

// columns is the width of a terminal, which is not known here.
func columns(any) int { return 0 }

const (
	guardArg   = "__guard"
	commandArg = "__command"
)

func guardMain([]string) int   { return exitUsage }
func commandMain([]string) int { return exitUsage }
