package lockhttp_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockhttp"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// The handler has the lock while it runs, and a token that is greater each time. Afterwards the lock is free.
func TestHandlerHasTheLock(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		var last uint64
		for range 2 {
			rec := w.send(func(rw http.ResponseWriter, r *http.Request) {
				lease, ok := locker.LeaseFrom(r.Context())
				if !ok || lease.Key() != key || lease.Fence() <= last {
					w.Errorf("the handler has the lease %v after token %d", lease, last)
				}
				last = lease.Fence()
				w.answers(w.sendTo(w.client(), w.unexpected), http.StatusConflict, "10")
				rw.WriteHeader(http.StatusCreated)
				_, _ = rw.Write([]byte("done"))
			})
			w.answers(rec, http.StatusCreated, "")
			if rec.Body.String() != "done" {
				w.Errorf("the body is %q", rec.Body)
			}
			w.free()
		}
	})
}

// A handler that says nothing is answered by the server, as without the middleware.
func TestSilentHandler(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		rec := w.send(func(http.ResponseWriter, *http.Request) {})
		w.answers(rec, http.StatusOK, "")
		if rec.Body.Len() > 0 || len(rec.Header()) > 1 {
			w.Errorf("answered %q, %v", rec.Body, rec.Header())
		}
	})
}

// What keeps a request from its lock is answered at once, and the handler is not called.
func TestRefusals(t *testing.T) {
	held := &locker.HeldError{Remaining: 2500 * time.Millisecond}
	resting := fmt.Errorf("no quorum: %w", &locker.GracePeriodError{Node: "a", Remaining: 12 * time.Second})
	for _, tt := range []struct {
		name       string
		err        error
		status     int
		retryAfter string
	}{
		{"held", held, http.StatusConflict, "3"},
		{"held, the store does not tell for how long", locker.ErrHeld, http.StatusConflict, "1"},
		{"held, for less than a second", &locker.HeldError{Remaining: 1}, http.StatusConflict, "1"},
		{"held, for whole seconds", &locker.HeldError{Remaining: 2 * time.Second}, http.StatusConflict, "2"},
		{"the store is down", locker.ErrUnavailable, http.StatusServiceUnavailable, "1"},
		{"the store rests", resting, http.StatusServiceUnavailable, "12"},
		{"the Locker is closed", locker.ErrClosed, http.StatusServiceUnavailable, "1"},
		{"the client has left", context.Canceled, http.StatusServiceUnavailable, "1"},
		{"invalid", locker.ErrInvalid, http.StatusBadRequest, ""},
		{"re-entrant", fmt.Errorf("%w: %w", locker.ErrInvalid, locker.ErrReentrant), http.StatusInternalServerError, ""},
		{"no lock", locker.ErrForeignKey, http.StatusInternalServerError, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &world{T: t}
			err := &locker.Error{Op: "lock", Key: key, Err: tt.err}
			rec := w.sendTo(failing{err}, w.unexpected)
			w.answers(rec, tt.status, tt.retryAfter)
			if strings.Contains(rec.Body.String(), key) {
				t.Errorf("the client is told %q", rec.Body)
			}
		})
	}
}

// The same, as the store and the Client say it.
func TestRefusalsOfAStore(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		log := logs(w.T)
		lease := w.lock()
		time.Sleep(1500 * time.Millisecond)
		w.answers(w.send(w.unexpected), http.StatusConflict, "9") // 8.5 s are left
		w.store.Down()
		w.answers(w.send(w.unexpected), http.StatusServiceUnavailable, "1")
		w.store.Up()
		if err := lease.Unlock(w.Context()); err != nil {
			w.Error(err)
		}
		rec := w.send(func(rw http.ResponseWriter, r *http.Request) { // nested in itself
			lockhttp.New(w.locker, byKey, lockhttp.Wait(time.Hour))(http.HandlerFunc(w.unexpected)).ServeHTTP(rw, r)
		})
		w.answers(rec, http.StatusInternalServerError, "")
		for _, key := range []string{"", strings.Repeat("k", locker.MaxKey+1)} {
			rec := httptest.NewRecorder()
			lockhttp.New(w.locker, func(*http.Request) string { return key })(http.HandlerFunc(w.unexpected)).
				ServeHTTP(rec, httptest.NewRequestWithContext(w.Context(), http.MethodGet, "/", nil))
			if rec.Code != http.StatusBadRequest {
				w.Errorf("a key of %d bytes: %d", len(key), rec.Code)
			}
		}
		w.free()
		// What the client can help is only for the client.
		if got := log.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "status=503") ||
			!strings.Contains(got, "status=500") {
			w.Errorf("logged %q", got)
		}
	})
}

// logs returns what is logged from now until the test ends.
func logs(t *testing.T) *strings.Builder {
	var text strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return &text
}

// A request waits for its turn. One whose turn does not come in time is asked to come again.
func TestWait(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		lease, start := w.lock(), time.Now()
		w.answers(w.send(w.unexpected, lockhttp.Wait(2*time.Second)), http.StatusServiceUnavailable, "8")
		if took := time.Since(start); took != 2*time.Second {
			w.Errorf("waited for %v", took)
		}
		time.AfterFunc(3*time.Second, func() { _ = lease.Unlock(w.Context()) })
		rec := w.send(func(_ http.ResponseWriter, r *http.Request) {
			if took := time.Since(start); took != 5*time.Second {
				w.Errorf("the lock was released after 5 s, and acquired after %v", took)
			}
			time.Sleep(time.Minute) // the limit of the wait does not end the work
			if err := r.Context().Err(); err != nil {
				w.Errorf("the context of the handler: %v", err)
			}
		}, lockhttp.Wait(10*time.Second))
		w.answers(rec, http.StatusOK, "")
		w.free()
	})
}

// Requests to two processes for the same key are handled one after the other, and those for other keys beside them.
func TestOneAtATime(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		var mu sync.Mutex
		running, runs := 0, 0
		work := func(http.ResponseWriter, *http.Request) {
			mu.Lock()
			running++
			runs++
			if running > 1 {
				w.Errorf("%d handlers run", running)
			}
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
		}
		var all sync.WaitGroup
		for range 2 {
			l := w.client()
			for range 5 {
				all.Go(func() { w.answers(w.sendTo(l, work, lockhttp.Wait(time.Minute)), http.StatusOK, "") })
			}
		}
		all.Wait()
		if runs != 10 {
			w.Errorf("%d runs", runs)
		}
		other := func(*http.Request) string { return "another" }
		w.send(func(http.ResponseWriter, *http.Request) {
			rec := httptest.NewRecorder()
			lockhttp.New(w.locker, other)(http.HandlerFunc(work)).
				ServeHTTP(rec, httptest.NewRequestWithContext(w.Context(), http.MethodGet, "/", nil))
			if rec.Code != http.StatusOK {
				w.Errorf("the other key: %d", rec.Code)
			}
		})
	})
}

// A client that leaves ends the wait of its request. While the handler runs, it ends the context, and the lock is
// released all the same.
func TestClientLeaves(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		ctx, leave := context.WithCancel(w.Context())
		lease := w.lock()
		time.AfterFunc(time.Second, leave)
		start := time.Now()
		rec := w.sendAs(ctx, w.locker, w.unexpected, lockhttp.Wait(time.Hour))
		w.answers(rec, http.StatusServiceUnavailable, "9")
		if took := time.Since(start); took != time.Second {
			w.Errorf("a client that left after a second was waited for until %v", took)
		}
		if err := lease.Unlock(w.Context()); err != nil {
			w.Error(err)
		}
		w.free()
		ctx, leave = context.WithCancel(w.Context())
		w.sendAs(ctx, w.locker, func(_ http.ResponseWriter, r *http.Request) {
			leave()
			<-r.Context().Done()
		})
		w.free()
	})
}

// A handler that panics releases the lock, and the panic goes on.
func TestPanicReleasesTheLock(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		func() {
			defer func() {
				if p := recover(); p != http.ErrAbortHandler {
					w.Errorf("recovered %v", p)
				}
			}()
			w.send(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		}()
		w.free()
	})
}

// A release that the store does not answer keeps the client for a second, and is no failure of the request.
func TestReleaseIsBounded(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		start := time.Now()
		rec := w.send(func(http.ResponseWriter, *http.Request) { w.store.Delay(3 * time.Second) })
		w.answers(rec, http.StatusOK, "")
		if took := time.Since(start); took != time.Second {
			w.Errorf("the release took %v", took)
		}
		w.store.Delay(0)
		time.Sleep(time.Second) // the release goes on
		w.free()
	})
}

// Requests that read are handled beside each other, and one that writes alone. A semaphore admits as many as it has
// permits.
func TestOtherLockers(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		rw, other := rwlock.New(w.locker), rwlock.New(w.client())
		w.sendTo(rw.Shared(), func(http.ResponseWriter, *http.Request) {
			w.answers(w.sendTo(other.Shared(), func(http.ResponseWriter, *http.Request) {
				if rec := w.sendTo(other.Exclusive(), w.unexpected); rec.Code != http.StatusConflict {
					w.Errorf("a writer beside readers: %d", rec.Code)
				}
			}), http.StatusOK, "")
		})
		two := semaphore.New(w.locker, 2)
		w.sendTo(two, func(http.ResponseWriter, *http.Request) {
			w.answers(w.sendTo(two, func(_ http.ResponseWriter, r *http.Request) {
				lease, _ := locker.LeaseFrom(r.Context())
				if _, ok := locker.LeaseAs[*semaphore.Permit](lease); !ok {
					w.Errorf("the lease %v is no permit", lease)
				}
				if rec := w.sendTo(two, w.unexpected); rec.Code != http.StatusConflict {
					w.Errorf("a third request: %d", rec.Code)
				}
			}), http.StatusOK, "")
		})
	})
}

// A program words its refusals itself.
func TestRefuse(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		w.lock()
		var said lockhttp.Refusal
		rec := w.send(w.unexpected, lockhttp.Refuse(func(rw http.ResponseWriter, r *http.Request, f lockhttp.Refusal) {
			said = f
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(http.StatusLocked)
			_, _ = fmt.Fprintf(rw, `{"key": %q}`, byKey(r))
		}))
		w.answers(rec, http.StatusLocked, "10")
		if rec.Body.String() != `{"key": "orders:42"}` {
			w.Errorf("answered %s", rec.Body)
		}
		if said.Status != http.StatusConflict || said.RetryAfter != 10*time.Second ||
			!strings.Contains(said.Err.Error(), "held by") {
			w.Errorf("refused with %+v", said)
		}
	})
}
