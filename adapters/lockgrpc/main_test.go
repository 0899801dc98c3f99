package lockgrpc_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockgrpc"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key    = "orders:42"
	method = "/shop.Orders/Ship"
)

// byRequest is the key of a unary call whose request is a string.
func byRequest(_ context.Context, _ string, req any) string {
	name, _ := req.(string)
	return name
}

// world is a store, and a Locker of it for the interceptors, in virtual time.
type world struct {
	*testing.T
	store  *lockertest.Store
	locker locker.Locker
}

func inVirtualTime(t *testing.T, f func(w *world)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		w := &world{T: t, store: lockertest.NewStore()}
		w.locker = w.client()
		f(w)
	})
}

// client returns a new Client of the store, which stands for another process.
func (w *world) client() *locker.Client {
	c := locker.NewClient(w.store)
	w.Cleanup(func() { _ = c.Close() })
	return c
}

// lock acquires the lock of key for another process.
func (w *world) lock() locker.Lease {
	w.Helper()
	lease, err := w.client().TryLock(w.Context(), key)
	if err != nil {
		w.Fatal(err)
	}
	return lease
}

func (w *world) unlock(lease locker.Lease) {
	w.Helper()
	if err := lease.Unlock(w.Context()); err != nil {
		w.Error(err)
	}
}

// free fails the test unless the lock of key is free.
func (w *world) free() {
	w.Helper()
	w.unlock(w.lock())
}

// lose takes the lock away from its holder, and waits until the handler has noticed that.
func (w *world) lose(ctx context.Context) {
	if err := w.store.Lose(ctx, key); err != nil {
		w.Error(err)
	}
	<-ctx.Done()
}

// call makes a unary call with key.
func (w *world) call(handler grpc.UnaryHandler, opts ...lockgrpc.Option) (resp any, err error) {
	return w.callAs(w.Context(), w.locker, handler, opts...)
}

func (w *world) callAs(
	ctx context.Context, l locker.Locker, handler grpc.UnaryHandler, opts ...lockgrpc.Option,
) (resp any, err error) {
	return lockgrpc.UnaryServerInterceptor(l, byRequest, opts...)(ctx, key, &grpc.UnaryServerInfo{FullMethod: method},
		handler)
}

// unexpected is a handler that must not be called.
func (w *world) unexpected(context.Context, any) (any, error) {
	w.Error("the handler was called")
	return nil, nil
}

// delay returns that of a RetryInfo, or 0 if there is none.
func (w *world) delay(err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// refused fails the test unless err has the code, and the delay.
func (w *world) refused(err error, code codes.Code, delay time.Duration) {
	w.Helper()
	if got := w.delay(err); status.Code(err) != code || got != delay {
		w.Errorf("%v, try again after %v; want %v, %v", err, got, code, delay)
	}
}

// failing is a Locker that acquires nothing.
type failing struct{ err error }

func (f failing) Lock(context.Context, string, ...locker.Option) (locker.Lease, error) {
	return nil, f.err
}

func (f failing) TryLock(context.Context, string, ...locker.Option) (locker.Lease, error) {
	return nil, f.err
}
