package lockgrpc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/golocker/locker"
)

// KeyFunc returns the key of a call, or "" if the call needs no lock. method is its full name, such as
// /shop.Orders/Ship. req is the request of a unary call, and nil for a stream, whose first message comes later: its key
// is made of what ctx has, such as metadata.
type KeyFunc func(ctx context.Context, method string, req any) string

// Option changes an interceptor.
type Option func(*guard)

// Wait makes calls wait for the lock for at most d, or until their own deadline. Without it, or if d is not positive, a
// call whose lock is held is refused at once.
func Wait(d time.Duration) Option {
	return func(g *guard) { g.wait = d }
}

// UnaryServerInterceptor returns an interceptor of unary calls, whose handlers hold the lock that key names.
func UnaryServerInterceptor(l locker.Locker, key KeyFunc, opts ...Option) grpc.UnaryServerInterceptor {
	g := newGuard(l, opts)
	return func(
		ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
	) (resp any, err error) {
		name := key(ctx, info.FullMethod, req)
		if name == "" {
			return handler(ctx, req)
		}
		if instead := g.do(ctx, name, func(ctx context.Context) { resp, err = handler(ctx, req) }); instead != nil {
			return nil, instead
		}
		return resp, err
	}
}

// StreamServerInterceptor returns an interceptor of streams, whose handlers hold the lock that key names.
func StreamServerInterceptor(l locker.Locker, key KeyFunc, opts ...Option) grpc.StreamServerInterceptor {
	g := newGuard(l, opts)
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		name := key(ss.Context(), info.FullMethod, nil)
		if name == "" {
			return handler(srv, ss)
		}
		instead := g.do(ss.Context(), name, func(ctx context.Context) {
			lease, _ := locker.LeaseFrom(ctx)
			err = handler(srv, &stream{ss, ctx, lease})
		})
		if instead != nil {
			return instead
		}
		return err
	}
}

// guard is what both interceptors do.
type guard struct {
	locker.Locker
	wait time.Duration
}

func newGuard(l locker.Locker, opts []Option) *guard {
	g := &guard{Locker: l}
	for _, opt := range opts {
		opt(g)
	}
	return g
}

// Lock waits for at most wait, and makes one attempt if that is not positive. The lease outlives the context of the
// wait.
func (g *guard) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	if g.wait <= 0 {
		return g.TryLock(ctx, key, opts...)
	}
	ctx, cancel := context.WithTimeout(ctx, g.wait)
	defer cancel()
	return g.Locker.Lock(ctx, key, opts...)
}

// do calls f while it holds the lock of key. If f was not called, or the lock was lost meanwhile, do returns the error
// for the client. Otherwise the lock was released, or will be in the background, which is nothing to the client.
func (g *guard) do(ctx context.Context, key string, f func(ctx context.Context)) error {
	called := false
	err := locker.Do(ctx, g, key, func(ctx context.Context) error {
		called = true
		f(ctx)
		return nil
	})
	switch {
	case !called:
		err = g.refusal(ctx, err)
	case errors.Is(err, locker.ErrLost):
		err = lost(err)
	default:
		return nil
	}
	// gRPC logs no errors of calls. What the client can help is only for the client.
	if code := status.Code(err); !errors.Is(err, locker.ErrHeld) && ctx.Err() == nil && code != codes.InvalidArgument {
		slog.Default().WarnContext(ctx, "a call has no lock", "code", code.String(), "error", err)
	}
	return err
}

// stream is the stream of a handler that has the lock. Once the lock is lost, it carries no more messages.
type stream struct {
	grpc.ServerStream
	ctx   context.Context // of the handler
	lease locker.Lease
}

func (s *stream) Context() context.Context { return s.ctx }

// lost returns an error if the lease is lost.
func (s *stream) lost() error {
	if err := s.lease.Err(); errors.Is(err, locker.ErrLost) {
		return lost(err)
	}
	return nil
}

func (s *stream) SendMsg(m any) error {
	if err := s.lost(); err != nil {
		return err
	}
	return s.ServerStream.SendMsg(m)
}

// RecvMsg receives in a goroutine, because only the end of the stream ends a receive, and the stream ends only when the
// handler has returned. After a loss, the goroutine may still write to m until then.
func (s *stream) RecvMsg(m any) error {
	if err := s.lost(); err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() { received <- s.ServerStream.RecvMsg(m) }()
	select {
	case err := <-received:
		return err
	case <-s.lease.Done():
	}
	if err := s.lost(); err != nil {
		return err
	}
	return <-received // the handler has unlocked it
}
