package slots

import (
	"errors"
	"slices"

	"github.com/golocker/locker"
)

// Named returns an error about locks of key with the name of the key, in place of theirs.
func Named(key string, err error) error {
	if err == nil {
		return nil
	}
	var of *locker.Error
	if !errors.As(err, &of) {
		return err
	}
	return &locker.Error{Op: of.Op, Key: key, Err: bare(Brief(err))}
}

// bare returns what err says about a lock, without its name.
func bare(err error) error {
	for {
		of, ok := err.(*locker.Error) //nolint:errorlint // joined errors are about several locks
		if !ok {
			return err
		}
		err = of.Err
	}
}

// Brief returns what the joined errors of several locks say, each kind once.
func Brief(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var kinds []error
	for _, e := range joined.Unwrap() {
		if !slices.ContainsFunc(kinds, func(seen error) bool { return alike(seen, e) }) {
			kinds = append(kinds, e)
		}
	}
	for i, e := range kinds {
		kinds[i] = bare(e)
	}
	if len(kinds) == 1 {
		return kinds[0]
	}
	return errors.Join(kinds...)
}

// alike reports whether a program would react to both errors in the same way.
func alike(a, b error) bool {
	for _, kind := range []error{locker.ErrNotHeld, locker.ErrLost, locker.ErrUnlocked, locker.ErrUnavailable} {
		if errors.Is(a, kind) != errors.Is(b, kind) {
			return false
		}
	}
	return true
}
