package lockgrpc_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockgrpc"
)

// fakeStream is a stream whose client is the test.
type fakeStream struct {
	grpc.ServerStream
	ctx  context.Context
	in   chan error // what RecvMsg returns
	sent int
}

func (s *fakeStream) Context() context.Context { return s.ctx }

func (s *fakeStream) SendMsg(any) error {
	s.sent++
	return nil
}

func (s *fakeStream) RecvMsg(any) error {
	select {
	case err := <-s.in:
		return err
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// open makes a stream with key, which ends when the handler has returned. Its client sends one message, and further
// ones by what the handler is given.
func (w *world) open(
	handler func(s grpc.ServerStream, client chan<- error) error, opts ...lockgrpc.Option,
) (*fakeStream, error) {
	ctx, end := context.WithCancel(w.Context())
	defer end()
	ss := &fakeStream{ctx: ctx, in: make(chan error, 2)}
	byMethod := func(_ context.Context, called string, req any) string {
		if called != method || req != nil {
			w.Errorf("the key of %s, %v", called, req)
		}
		return key
	}
	return ss, lockgrpc.StreamServerInterceptor(w.locker, byMethod, opts...)(nil, ss,
		&grpc.StreamServerInfo{FullMethod: method}, func(_ any, s grpc.ServerStream) error {
			ss.in <- nil
			return handler(s, ss.in)
		})
}

// A stream has the lock from its beginning to its end, and passes messages on.
func TestStreamHasTheLock(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		failed := errors.New("failed")
		ss, err := w.open(func(s grpc.ServerStream, _ chan<- error) error {
			if lease, ok := locker.LeaseFrom(s.Context()); !ok || lease.Key() != key {
				w.Errorf("the handler has the lease %v", lease)
			}
			_, err := w.callAs(w.Context(), w.client(), w.unexpected)
			w.refused(err, codes.Aborted, 10*time.Second)
			if err := errors.Join(s.RecvMsg(nil), s.SendMsg(nil), s.SendMsg(nil)); err != nil {
				w.Error(err)
			}
			return failed
		})
		if ss.sent != 2 || err != failed {
			w.Errorf("sent %d, returned %v", ss.sent, err)
		}
		w.free()
		lease := w.lock()
		unexpected := func(grpc.ServerStream, chan<- error) error { return errors.New("the handler was called") }
		_, err = w.open(unexpected)
		w.refused(err, codes.Aborted, 10*time.Second)
		_, err = w.open(unexpected, lockgrpc.Wait(time.Second))
		w.refused(err, codes.Unavailable, 9*time.Second)
		w.unlock(lease)
	})
}

// A stream that has lost its lock carries no more messages, also not for a handler that waits for its client.
func TestLossOfAStream(t *testing.T) {
	for name, play := range map[string]func(w *world, s grpc.ServerStream) error{
		"it returns nil": func(w *world, s grpc.ServerStream) error {
			w.lose(s.Context())
			return nil
		},
		"it sends": func(w *world, s grpc.ServerStream) error {
			w.lose(s.Context())
			return s.SendMsg(nil)
		},
		"it receives": func(w *world, s grpc.ServerStream) error {
			w.lose(s.Context())
			return s.RecvMsg(nil)
		},
		"it waits for the client": func(w *world, s grpc.ServerStream) error {
			if err := s.RecvMsg(nil); err != nil {
				w.Error(err)
			}
			go w.lose(s.Context())
			err := s.RecvMsg(nil)
			if again := s.RecvMsg(nil); !errors.Is(again, locker.ErrLost) {
				w.Errorf("received again: %v", again)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(w *world) {
				ss, err := w.open(func(s grpc.ServerStream, _ chan<- error) error {
					err := play(w, s)
					if err != nil {
						w.refused(err, codes.Aborted, 0)
					}
					return err
				})
				w.refused(err, codes.Aborted, 0)
				if ss.sent > 0 || !errors.Is(err, locker.ErrLost) {
					w.Errorf("sent %d messages, and returned %v", ss.sent, err)
				}
				w.free()
			})
		})
	}
}

// A handler that unlocks its lease before its end goes on without the lock, also in the middle of a receive.
func TestStreamGoesOnWithoutTheLock(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		ss, err := w.open(func(s grpc.ServerStream, client chan<- error) error {
			if err := s.RecvMsg(nil); err != nil {
				w.Error(err)
			}
			lease, _ := locker.LeaseFrom(s.Context())
			time.AfterFunc(time.Second, func() { w.unlock(lease) })
			time.AfterFunc(2*time.Second, func() { client <- nil })
			err := errors.Join(s.RecvMsg(nil), s.SendMsg(nil))
			w.free()
			return err
		})
		if ss.sent != 1 || err != nil {
			w.Errorf("sent %d, returned %v", ss.sent, err)
		}
	})
}
