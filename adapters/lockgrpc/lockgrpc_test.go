package lockgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockgrpc"
	"github.com/golocker/locker/semaphore"
)

// The handler has the lock while it runs, and a token that is greater each time. Afterwards the lock is free.
func TestHandlerHasTheLock(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		var last uint64
		failed := status.Error(codes.NotFound, "no such order")
		for _, want := range []error{nil, failed} {
			resp, err := w.call(func(ctx context.Context, req any) (any, error) {
				lease, ok := locker.LeaseFrom(ctx)
				if !ok || lease.Key() != key || req != key || lease.Fence() <= last {
					w.Errorf("the handler of %v has the lease %v after token %d", req, lease, last)
				}
				last = lease.Fence()
				_, err := w.callAs(w.Context(), w.client(), w.unexpected)
				w.refused(err, codes.Aborted, 10*time.Second)
				if !errors.Is(err, locker.ErrHeld) {
					w.Errorf("interceptors see %v", err)
				}
				return "done", want
			})
			if resp != "done" || err != want {
				w.Errorf("returned %v, %v; want what the handler returned", resp, err)
			}
			w.free()
		}
	})
}

// A call without a key is handled without a lock.
func TestNoKey(t *testing.T) {
	none := func(context.Context, string, any) string { return "" }
	l := failing{errors.New("the lock was asked for")}
	resp, err := lockgrpc.UnaryServerInterceptor(l, none)(t.Context(), key, &grpc.UnaryServerInfo{FullMethod: method},
		func(ctx context.Context, _ any) (any, error) {
			if _, ok := locker.LeaseFrom(ctx); ok {
				t.Error("the handler has a lease")
			}
			return "done", nil
		})
	if resp != "done" || err != nil {
		t.Errorf("unary: %v, %v", resp, err)
	}
	ss := &fakeStream{ctx: t.Context()}
	err = lockgrpc.StreamServerInterceptor(l, none)(nil, ss, &grpc.StreamServerInfo{FullMethod: method},
		func(_ any, got grpc.ServerStream) error {
			if got != ss {
				t.Error("the handler has another stream")
			}
			return nil
		})
	if err != nil {
		t.Errorf("stream: %v", err)
	}
}

// What keeps a call from its lock is a code of gRPC, and the handler is not called.
func TestRefusals(t *testing.T) {
	held := &locker.HeldError{Remaining: 2500 * time.Millisecond, Label: "web-7:4211"}
	resting := fmt.Errorf("no quorum: %w", &locker.GracePeriodError{Node: "a", Remaining: 12 * time.Second})
	for _, tt := range []struct {
		name  string
		wait  time.Duration
		err   error
		code  codes.Code
		delay time.Duration
	}{
		{"held", 0, held, codes.Aborted, 2500 * time.Millisecond},
		{"held, the store does not tell for how long", 0, locker.ErrHeld, codes.Aborted, time.Second},
		{"held after the wait", time.Second, held, codes.Unavailable, 2500 * time.Millisecond},
		{"the store is down", 0, locker.ErrUnavailable, codes.Unavailable, time.Second},
		{"the store rests", 0, resting, codes.Unavailable, 12 * time.Second},
		{"the Locker is closed", 0, locker.ErrClosed, codes.Unavailable, time.Second},
		{"invalid", 0, locker.ErrInvalid, codes.InvalidArgument, 0},
		{"re-entrant", 0, fmt.Errorf("%w: %w", locker.ErrInvalid, locker.ErrReentrant), codes.Internal, 0},
		{"no lock", 0, locker.ErrForeignKey, codes.Internal, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &world{T: t}
			log := logs(t)
			l := failing{&locker.Error{Op: "lock", Key: key, Err: tt.err}}
			_, err := w.callAs(t.Context(), l, w.unexpected, lockgrpc.Wait(tt.wait))
			w.refused(err, tt.code, tt.delay)
			if text := status.Convert(err).Message(); strings.Contains(text, key) || strings.Contains(text, "web-7") {
				t.Errorf("the client is told %q", text)
			}
			if !errors.Is(err, tt.err) || !strings.Contains(err.Error(), key) {
				t.Errorf("interceptors see %v", err)
			}
			silent := errors.Is(tt.err, locker.ErrHeld) || tt.code == codes.InvalidArgument // only for the client
			if logged := log.Len() > 0; logged == silent {
				t.Errorf("logged %q", log)
			}
		})
	}
}

// logs returns what is logged from now until the test ends.
func logs(t *testing.T) *strings.Builder {
	var text strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return &text
}

// A call waits for its turn, until the time is over or the client gives up.
func TestWait(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		lease, start := w.lock(), time.Now()
		after := func(want time.Duration) {
			w.Helper()
			if took := time.Since(start); took != want {
				w.Errorf("after %v, want %v", took, want)
			}
		}
		_, err := w.call(w.unexpected, lockgrpc.Wait(2*time.Second))
		w.refused(err, codes.Unavailable, 8*time.Second)
		after(2 * time.Second)
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		_, err = w.callAs(ctx, w.locker, w.unexpected, lockgrpc.Wait(time.Hour))
		w.refused(err, codes.DeadlineExceeded, 0)
		after(3 * time.Second)
		ctx, cancel = context.WithCancel(w.Context())
		time.AfterFunc(time.Second, cancel)
		_, err = w.callAs(ctx, w.locker, w.unexpected, lockgrpc.Wait(time.Hour))
		w.refused(err, codes.Canceled, 0)
		after(4 * time.Second)
		time.AfterFunc(time.Second, func() { w.unlock(lease) })
		_, err = w.call(func(ctx context.Context, _ any) (any, error) {
			after(5 * time.Second)
			time.Sleep(time.Minute) // the limit of the wait does not end the work
			return nil, ctx.Err()
		}, lockgrpc.Wait(10*time.Second))
		if err != nil {
			w.Error(err)
		}
		w.free()
	})
}

// After a loss, the context of the handler ends, and whatever the handler returns, the call has failed.
func TestLoss(t *testing.T) {
	for name, result := range map[string]func(ctx context.Context) (any, error){
		"it returns a response":   func(context.Context) (any, error) { return "done", nil },
		"it returns its context":  func(ctx context.Context) (any, error) { return nil, ctx.Err() },
		"it returns another code": func(context.Context) (any, error) { return nil, status.Error(codes.NotFound, "") },
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(w *world) {
				resp, err := w.call(func(ctx context.Context, _ any) (any, error) {
					w.lose(ctx)
					return result(ctx)
				})
				w.refused(err, codes.Aborted, 0)
				if resp != nil || !errors.Is(err, locker.ErrLost) {
					w.Errorf("%v, %v", resp, err)
				}
				w.free()
			})
		})
	}
}

// The lock is released when a handler panics, and when its client has left.
func TestTheLockIsReleased(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		func() {
			defer func() {
				if p := recover(); p != "oops" {
					w.Errorf("recovered %v", p)
				}
			}()
			_, _ = w.call(func(context.Context, any) (any, error) { panic("oops") })
		}()
		w.free()
		ctx, leave := context.WithCancel(w.Context())
		_, err := w.callAs(ctx, w.locker, func(ctx context.Context, _ any) (any, error) {
			leave()
			<-ctx.Done()
			return nil, status.FromContextError(ctx.Err()).Err()
		})
		w.refused(err, codes.Canceled, 0)
		w.free()
	})
}

// A release that the store does not answer keeps the client for a second, and is no failure of the call.
func TestReleaseIsBounded(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		start := time.Now()
		resp, err := w.call(func(context.Context, any) (any, error) {
			w.store.Delay(3 * time.Second)
			return "done", nil
		})
		if took := time.Since(start); resp != "done" || err != nil || took != time.Second {
			w.Errorf("%v, %v after %v", resp, err, took)
		}
		w.store.Delay(0)
		time.Sleep(time.Second) // the release goes on
		w.free()
	})
}

// A semaphore lets as many calls be handled as it has permits.
func TestSemaphore(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		two := semaphore.New(w.locker, 2)
		_, err := w.callAs(w.Context(), two, func(context.Context, any) (any, error) {
			return w.callAs(w.Context(), two, func(context.Context, any) (any, error) {
				_, err := w.callAs(w.Context(), two, w.unexpected)
				if status.Code(err) != codes.Aborted {
					w.Errorf("a third call: %v", err)
				}
				return nil, nil
			})
		})
		if err != nil {
			w.Error(err)
		}
	})
}
