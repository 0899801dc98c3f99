package lockgrpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/golocker/locker"
)

// statusError is a status for the client, and the error of the lock for interceptors of the program.
type statusError struct {
	status *status.Status
	err    error
}

func (e *statusError) Error() string { return e.status.Message() + ": " + e.err.Error() }

func (e *statusError) Unwrap() error { return e.err }

// GRPCStatus is for package status.
func (e *statusError) GRPCStatus() *status.Status { return e.status }

// lost returns the error of a call that has lost its lock.
func lost(err error) error {
	return &statusError{status.New(codes.Aborted, "the lock of this call was lost"), err}
}

// refusal returns the error of a call whose lock could not be acquired. ctx is that of the call.
func (g *guard) refusal(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return &statusError{status.FromContextError(ctx.Err()), err}
	case errors.Is(err, locker.ErrReentrant), errors.Is(err, locker.ErrForeignKey): // the client cannot help it
		return &statusError{status.New(codes.Internal, "the lock of this call can never be acquired"), err}
	case errors.Is(err, locker.ErrInvalid):
		return &statusError{status.New(codes.InvalidArgument, "the lock of this call has an invalid key"), err}
	case errors.Is(err, locker.ErrHeld) && g.wait <= 0:
		return again(codes.Aborted, "another call has the lock", err)
	case errors.Is(err, locker.ErrHeld):
		return again(codes.Unavailable, "another call still has the lock", err)
	}
	return again(codes.Unavailable, "the store of locks is not available", err)
}

// again returns the error of a call that can be repeated.
func again(code codes.Code, text string, err error) error {
	s := status.New(code, text)
	if told, failed := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter(err))}); failed == nil {
		s = told
	}
	return &statusError{s, err}
}

// retryAfter returns when it may be worth while to try again.
func retryAfter(err error) time.Duration {
	var held *locker.HeldError
	var resting *locker.GracePeriodError
	switch {
	case errors.As(err, &held) && held.Remaining > 0:
		return held.Remaining
	case errors.As(err, &resting) && resting.Remaining > 0:
		return resting.Remaining
	}
	return time.Second
}
