package lockhttp_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockhttp"
	"github.com/golocker/locker/lockertest"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/memory"
)

// The context of a handler ends when its lock is lost, for whatever reason, and its cause says why.
func TestLossEndsTheContext(t *testing.T) {
	for name, lose := range map[string]func(w *world){
		"taken away": func(w *world) {
			if err := w.store.Lose(w.Context(), key); err != nil {
				w.Error(err)
			}
		},
		"the store is down": func(w *world) { w.store.Down() },
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(w *world) {
				start := time.Now()
				rec := w.send(func(_ http.ResponseWriter, r *http.Request) {
					lose(w)
					<-r.Context().Done()
					var lost *locker.LostError
					lease, _ := locker.LeaseFrom(r.Context())
					if !errors.As(lease.Err(), &lost) {
						w.Errorf("the lease has ended with %v", lease.Err())
					}
				})
				if took := time.Since(start); took > locker.DefaultTTL+time.Second { // a second for the release
					w.Errorf("the request took %v", took)
				}
				w.store.Up()
				w.answers(rec, http.StatusInternalServerError, "")
			})
		})
	}
}

// What a handler says after the loss is no success. What it said before cannot be changed, and is cut off.
func TestAnswersAfterALoss(t *testing.T) {
	write := func(w *world, rw http.ResponseWriter, text string, want error) {
		w.Helper()
		if _, err := io.WriteString(rw, text); !errors.Is(err, want) {
			w.Errorf("wrote %q: %v, want %v", text, err, want)
		}
	}
	for _, tt := range []struct {
		name    string
		handler func(w *world, rw http.ResponseWriter, lose func())
		status  int // 0: the response is cut off
	}{
		{"it says nothing", func(_ *world, _ http.ResponseWriter, lose func()) { lose() }, 500},
		{"it says 200", func(w *world, rw http.ResponseWriter, lose func()) {
			lose()
			rw.WriteHeader(http.StatusOK)
			write(w, rw, "done", locker.ErrLost)
		}, 500},
		{"it writes", func(w *world, rw http.ResponseWriter, lose func()) {
			lose()
			write(w, rw, "done", locker.ErrLost)
			write(w, rw, "done", locker.ErrLost)
		}, 500},
		{"it redirects", func(_ *world, rw http.ResponseWriter, lose func()) {
			lose()
			rw.Header().Set("Location", "/done")
			rw.WriteHeader(http.StatusSeeOther)
		}, 500},
		{"it flushes", func(w *world, rw http.ResponseWriter, lose func()) {
			lose()
			if err := http.NewResponseController(rw).Flush(); !errors.Is(err, locker.ErrLost) {
				w.Errorf("Flush: %v", err)
			}
		}, 500},
		{"it says that it has failed", func(w *world, rw http.ResponseWriter, lose func()) {
			lose()
			rw.Header().Set("Retry-After", "7")
			rw.WriteHeader(http.StatusServiceUnavailable)
			write(w, rw, "failed", nil)
		}, 503},
		{"it had said that it has failed", func(w *world, rw http.ResponseWriter, lose func()) {
			rw.WriteHeader(http.StatusNotFound)
			lose()
			write(w, rw, "failed", nil)
		}, 404},
		{"it had said 200", func(_ *world, rw http.ResponseWriter, lose func()) {
			rw.WriteHeader(http.StatusOK)
			lose()
		}, 0},
		{"it had begun to write", func(w *world, rw http.ResponseWriter, lose func()) {
			write(w, rw, "do", nil)
			lose()
			write(w, rw, "ne", locker.ErrLost)
		}, 0},
		{"it had flushed", func(w *world, rw http.ResponseWriter, lose func()) {
			rw.(http.Flusher).Flush()
			lose()
			rw.WriteHeader(http.StatusInternalServerError) // too late
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inVirtualTime(t, func(w *world) {
				cut := true
				defer func() {
					if p := recover(); p != nil && p != http.ErrAbortHandler {
						panic(p)
					}
					if cut != (tt.status == 0) {
						w.Errorf("cut off: %t", cut)
					}
					w.free()
				}()
				rec := w.send(func(rw http.ResponseWriter, r *http.Request) {
					rw.Header().Set("ETag", "new") // and Location
					rw.Header().Add("X-Outside", "and changed")
					tt.handler(w, rw, func() { w.lose(r.Context()) })
				})
				cut = false
				if rec.Code != tt.status {
					w.Errorf("answered %d, want %d", rec.Code, tt.status)
				}
				if tt.status == 500 && (rec.Header().Get("ETag") != "" || len(rec.Header()["X-Outside"]) > 1 ||
					rec.Header().Get("Location") != "" || rec.Body.String() != "Internal Server Error\n") {
					w.Errorf("answered %v, %q", rec.Header(), rec.Body)
				}
			})
		})
	}
}

// A loss that only the release finds out is one, too.
func TestLossIsFoundAtTheRelease(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		rec := w.sendTo(unnoticed{w.locker}, func(_ http.ResponseWriter, r *http.Request) { w.lose(r.Context()) })
		w.answers(rec, http.StatusInternalServerError, "")
	})
}

// unnoticed is a Locker whose leases learn of no loss before their release.
type unnoticed struct{ locker.Locker }

func (u unnoticed) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := u.Locker.TryLock(ctx, key, opts...)
	return ignorant{lease}, err
}

type ignorant struct{ locker.Lease }

func (ignorant) Err() error { return nil }

// Clients see that a response was cut off, and take it for no success.
func TestClientSeesTheCut(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewStore()
			l := locker.NewClient(store)
			defer l.Close()
			lose := func(r *http.Request) {
				if err := store.Lose(r.Context(), key); err != nil {
					t.Error(err)
				}
				<-r.Context().Done()
			}
			lock := lockhttp.New(l, func(*http.Request) string { return key })
			mux := http.NewServeMux()
			mux.Handle("/begun", lock(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(rw, "begun")
				_ = http.NewResponseController(rw).Flush()
				lose(r)
			})))
			mux.Handle("/buffered", lock(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(rw, "buffered")
				lose(r)
			})))
			mux.Handle("/silent", lock(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				rw.WriteHeader(http.StatusEarlyHints) // which is no answer yet
				lose(r)
			})))
			s := httptest.NewUnstartedServer(mux)
			s.EnableHTTP2 = http2
			s.StartTLS()
			defer s.Close()
			get := func(path string) (status int, err error) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := s.Client().Do(req)
				if err != nil {
					return 0, err
				}
				defer resp.Body.Close()
				if (resp.ProtoMajor == 2) != http2 {
					t.Errorf("answered by %s", resp.Proto)
				}
				_, err = io.ReadAll(resp.Body)
				return resp.StatusCode, err
			}
			if status, err := get("/silent"); status != http.StatusInternalServerError || err != nil {
				t.Errorf("a handler that said nothing: %d, %v", status, err)
			}
			if status, err := get("/begun"); status != http.StatusOK || err == nil {
				t.Errorf("a response that was begun: %d, %v", status, err)
			}
			if _, err := get("/buffered"); err == nil {
				t.Error("a response that was not sent yet was received in full")
			}
		})
	}
}

// complaint fails a test with what is written to it.
type complaint struct{ *testing.T }

func (c complaint) Write(text []byte) (int, error) {
	c.Errorf("the server says: %s", text)
	return len(text), nil
}

// A connection that the handler has hijacked is its own.
func TestHijack(t *testing.T) {
	store := lockertest.NewStore()
	l := locker.NewClient(store)
	defer l.Close()
	ended := make(chan error, 1)
	s := httptest.NewUnstartedServer(lockhttp.New(l, func(*http.Request) string { return key })(http.HandlerFunc(
		func(rw http.ResponseWriter, r *http.Request) {
			conn, _, err := rw.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			err = store.Lose(r.Context(), key)
			<-r.Context().Done()
			if _, _, again := rw.(http.Hijacker).Hijack(); !errors.Is(again, locker.ErrLost) {
				t.Errorf("hijacked after the loss: %v", again)
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine")
			ended <- err
		})))
	s.Config.ErrorLog = log.New(complaint{t}, "", 0) // of writes to a connection that was hijacked
	s.Start()
	defer s.Close()
	resp, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); string(body) != "mine" || err != nil {
		t.Errorf("received %q, %v", body, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A client that leaves while its request waits makes room: the server notices, and the request leaves the queue.
func TestClientThatLeavesIsNoticed(t *testing.T) {
	l := memory.New()
	defer l.Close()
	waits, ended := make(chan struct{}), make(chan struct{})
	waiting := lockertrace.With(t.Context(), &lockertrace.Trace{
		Waiting: func(lockertrace.Waiting) { close(waits) },
	})
	held, err := l.TryLock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	lock := lockhttp.New(l, func(*http.Request) string { return key }, lockhttp.Wait(time.Hour))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		lock(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler was called") })).
			ServeHTTP(rw, r)
		close(ended)
	}))
	s.Config.BaseContext = func(net.Listener) context.Context { return waiting }
	s.Start()
	defer s.Close()
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-waits
		leave()
	}()
	if resp, err := s.Client().Do(req); err == nil {
		resp.Body.Close()
		t.Errorf("answered %s", resp.Status)
	}
	<-ended
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
