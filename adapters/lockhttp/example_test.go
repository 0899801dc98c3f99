package lockhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockhttp"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/rwlock"
)

func Example() {
	l := memory.New() // or config.Open with a URL, which all instances share
	defer l.Close()
	byOrder := func(r *http.Request) string { return "orders:" + r.PathValue("id") }
	lock := lockhttp.New(locker.Wrap(l, locker.Defaults(locker.TTL(5*time.Second))), byOrder)

	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/ship", lock(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lease, _ := locker.LeaseFrom(r.Context())
		fmt.Println("has a token:", lease.Fence() > 0)
		_, _ = fmt.Fprintln(w, "shipped", r.PathValue("id"))
	})))

	post := func() {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/42/ship", nil))
		fmt.Printf("%d %q, Retry-After %q\n", w.Code, w.Body, w.Header().Get("Retry-After"))
	}
	post()
	lease, err := l.TryLock(context.Background(), "orders:42") // another request is at it
	if err != nil {
		panic(err)
	}
	post()
	_ = lease.Unlock(context.Background())
	// Output:
	// has a token: true
	// 200 "shipped 42\n", Retry-After ""
	// 409 "Conflict\n", Retry-After "10"
}

// Requests that read wait only for those that write.
func Example_readersAndWriters() {
	l := memory.New()
	defer l.Close()
	byDevice := func(r *http.Request) string { return "devices:" + r.PathValue("id") }
	rw, wait := rwlock.New(l), lockhttp.Wait(2*time.Second)
	reads, writes := lockhttp.New(rw.Shared(), byDevice, wait), lockhttp.New(rw.Exclusive(), byDevice, wait)

	mux := http.NewServeMux()
	mux.Handle("GET /devices/{id}", reads(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintln(w, "the state of", r.PathValue("id"))
	})))
	mux.Handle("PUT /devices/{id}", writes(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})))

	for _, method := range []string{http.MethodPut, http.MethodGet} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(method, "/devices/7", nil))
		fmt.Printf("%d %q\n", w.Code, w.Body)
	}
	// Output:
	// 204 ""
	// 200 "the state of 7\n"
}

// On SIGTERM, requests that wait for a lock are answered at once, and those that have one are finished.
func Example_shutdown() {
	l := memory.New()
	lock := lockhttp.New(l, func(*http.Request) string { return "report" }, lockhttp.Wait(time.Minute))
	server := &http.Server{Handler: lock(http.NotFoundHandler()), ReadHeaderTimeout: time.Second}

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // less than the grace period
	defer cancel()
	server.RegisterOnShutdown(func() { l.Drain(ctx) })
	if err := server.Shutdown(ctx); err != nil {
		panic(err)
	}
	fmt.Println(len(l.Drain(ctx)), "locks are held")
	w := httptest.NewRecorder()
	server.Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	fmt.Println(w.Code)
	_ = l.Close()
	// Output:
	// 0 locks are held
	// 503
}
