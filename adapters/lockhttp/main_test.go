package lockhttp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockhttp"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "orders:42"

// byKey takes the key of a request from its query.
func byKey(r *http.Request) string { return r.URL.Query().Get("key") }

// world is a store, and a Locker of it for the middleware, in virtual time.
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
func (w *world) lock(opts ...locker.Option) locker.Lease {
	w.Helper()
	lease, err := w.client().TryLock(w.Context(), key, opts...)
	if err != nil {
		w.Fatal(err)
	}
	return lease
}

// free fails the test unless the lock of key is free.
func (w *world) free() {
	w.Helper()
	if err := w.lock().Unlock(w.Context()); err != nil {
		w.Error(err)
	}
}

// lose takes the lock away from its holder, and waits until the request has noticed that.
func (w *world) lose(ctx context.Context) {
	if err := w.store.Lose(ctx, key); err != nil {
		w.Error(err)
	}
	<-ctx.Done()
}

// send handles a request for key.
func (w *world) send(handler http.HandlerFunc, opts ...lockhttp.Option) *httptest.ResponseRecorder {
	return w.sendTo(w.locker, handler, opts...)
}

func (w *world) sendTo(
	l locker.Locker, handler http.HandlerFunc, opts ...lockhttp.Option,
) *httptest.ResponseRecorder {
	return w.sendAs(w.Context(), l, handler, opts...)
}

// sendAs handles a request of a client that leaves when ctx ends.
func (w *world) sendAs(
	ctx context.Context, l locker.Locker, handler http.HandlerFunc, opts ...lockhttp.Option,
) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	rec.Header().Set("X-Outside", "kept") // by other middleware
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/?key="+key, nil)
	lockhttp.New(l, byKey, opts...)(handler).ServeHTTP(rec, r)
	return rec
}

// unexpected is a handler that must not be called.
func (w *world) unexpected(http.ResponseWriter, *http.Request) { w.Error("the handler was called") }

// answers fails the test unless a response has the status, and Retry-After, which is "" if there is none.
func (w *world) answers(rec *httptest.ResponseRecorder, status int, retryAfter string) {
	w.Helper()
	if got := rec.Header().Get("Retry-After"); rec.Code != status || got != retryAfter {
		w.Errorf("answered %d, Retry-After %q; want %d, %q", rec.Code, got, status, retryAfter)
	}
	if rec.Header().Get("X-Outside") != "kept" {
		w.Error("a header of other middleware is gone")
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
