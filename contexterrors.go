package locker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golocker/locker/internal/ending"
)

// fromBackend converts an error of a backend. The result does not match the errors of contexts, because only
// withContext reports the end of the caller's context. It matches ErrUnavailable if it matches no other sentinel error.
func fromBackend(err error) error {
	if err == nil {
		return nil
	}
	known := false
	for _, sentinel := range []error{ErrUnavailable, ErrHeld, ErrNotHeld, ErrInvalid, ErrForeignKey, ErrClosed} {
		known = known || errors.Is(err, sentinel)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = &shielded{err}
	}
	if !known {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// shielded is an error that matches everything that err matches, except the errors of contexts. It has no Unwrap
// method, because errors.Is would use that to look at err itself.
type shielded struct{ err error }

func (s *shielded) Error() string { return s.err.Error() }

func (s *shielded) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(s.err, target)
}

func (s *shielded) As(target any) bool { return errors.As(s.err, target) }

// waited is withContext for a call of Lock that began at start. The text says how long the call has waited.
func waited(ctx context.Context, start time.Time, reason error) error {
	end := ending.Of(ctx)
	if end == nil || errors.Is(reason, end) {
		return withContext(ctx, reason)
	}
	what := "cancelled"
	if errors.Is(end, context.DeadlineExceeded) {
		what = "timed out"
	}
	took := time.Since(start).Round(time.Millisecond)
	if cause := context.Cause(ctx); !errors.Is(end, cause) {
		what += fmt.Sprintf(" (%v)", cause)
	}
	return &retoldError{withContext(ctx, reason), fmt.Sprintf("%s after %v: %v", what, took, reason)}
}

// unreleased is withContext for Unlock, whose request had the context release. The text does not mention the end of
// ctx, which has not ended the release. If release has ended, the text does not call that a deadline either, because
// the caller has set none.
func unreleased(ctx, release context.Context, reason error) error {
	text := reason.Error()
	if release.Err() != nil {
		text = strings.ReplaceAll(text, context.DeadlineExceeded.Error(), "no answer within "+releaseBound.String())
	}
	return &retoldError{withContext(ctx, reason), text}
}

// retoldError is err with another text.
type retoldError struct {
	err  error
	text string
}

func (e *retoldError) Error() string { return e.text }
func (e *retoldError) Unwrap() error { return e.err }

// withContext returns reason, and adds ctx's error to it if ctx has ended. reason is the result of the last contact
// with the store. It may be nil or ctx's own error.
func withContext(ctx context.Context, reason error) error {
	err := ending.Of(ctx)
	if err == nil {
		return reason
	}
	if reason == err { //nolint:errorlint // a reason that wraps err has more information and is kept
		reason = nil
	}
	err = ending.Why(ctx, err)
	if reason == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, reason)
}
