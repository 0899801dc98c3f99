//go:build !linux

package filelock

import (
	"errors"
	"os"
)

// notify fails: here, waiters look at intervals.
func notify(string) (*os.File, error) { return nil, errors.ErrUnsupported }

func changes([]byte) (names []string, all bool) { return nil, false }
