package lockhttp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/golocker/locker"
)

// Option changes a middleware; see [New].
type Option func(*middleware)

// Wait makes requests wait for the lock for at most d. Without it, or if d is not positive, a request whose lock is
// held is answered at once.
func Wait(d time.Duration) Option {
	return func(m *middleware) { m.wait = d }
}

// Refuse replaces the answers of the middleware. write is called once for each request that is refused, with the
// response as it was before the handler, and with Retry-After set. It must write a status from 400 on:
//
//	lockhttp.Refuse(func(w http.ResponseWriter, r *http.Request, f lockhttp.Refusal) {
//		if f.Status == http.StatusConflict {
//			f.Status = http.StatusLocked
//		}
//		http.Error(w, http.StatusText(f.Status), f.Status)
//	})
func Refuse(write func(w http.ResponseWriter, r *http.Request, f Refusal)) Option {
	return func(m *middleware) { m.write = write }
}

// Refusal is an answer in place of that of a handler.
type Refusal struct {
	Status     int           // as the package comment says
	RetryAfter time.Duration // whole seconds; 0 if the response has no Retry-After
	Err        error         // of the lock. Its text is not for clients: it has the key and names hosts
}

// New returns a middleware whose handlers hold the lock that key names for a request.
func New(
	l locker.Locker, key func(r *http.Request) string, opts ...Option,
) func(next http.Handler) http.Handler {
	m := middleware{locker: l, key: key}
	m.write = func(w http.ResponseWriter, r *http.Request, f Refusal) {
		if f.Status >= http.StatusInternalServerError && !errors.Is(f.Err, locker.ErrHeld) && r.Context().Err() == nil {
			slog.Default().WarnContext(r.Context(), "a request has no lock", "status", f.Status, "error", f.Err)
		}
		http.Error(w, http.StatusText(f.Status), f.Status)
	}
	for _, opt := range opts {
		opt(&m)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

type middleware struct {
	locker locker.Locker
	key    func(*http.Request) string
	wait   time.Duration
	write  func(http.ResponseWriter, *http.Request, Refusal)
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	var resp *response // nil until the lock is acquired
	err := locker.Do(r.Context(), patient{m.locker, m.wait}, m.key(r), func(ctx context.Context) error {
		lease, _ := locker.LeaseFrom(ctx)
		resp = &response{ResponseWriter: w, lease: lease, before: w.Header().Clone()}
		resp.refuse = func(err error) { m.refuse(w, r, Refusal{Status: http.StatusInternalServerError, Err: err}) }
		next.ServeHTTP(resp, r.WithContext(ctx))
		return nil
	})
	switch {
	case resp == nil:
		m.refuse(w, r, m.refusal(err))
	case errors.Is(err, locker.ErrLost):
		resp.end(err)
	}
	// Otherwise the lock was released, or will be in the background, which is nothing to the client.
}

func (m *middleware) refuse(w http.ResponseWriter, r *http.Request, f Refusal) {
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(f.RetryAfter/time.Second)))
	}
	m.write(w, r, f)
}

// refusal returns what to say if the lock could not be acquired.
func (m *middleware) refusal(err error) Refusal {
	switch {
	case errors.Is(err, locker.ErrReentrant), errors.Is(err, locker.ErrForeignKey): // the client cannot help it
		return Refusal{Status: http.StatusInternalServerError, Err: err}
	case errors.Is(err, locker.ErrInvalid):
		return Refusal{Status: http.StatusBadRequest, Err: err}
	case errors.Is(err, locker.ErrHeld) && m.wait <= 0:
		return Refusal{http.StatusConflict, retryAfter(err), err}
	}
	return Refusal{http.StatusServiceUnavailable, retryAfter(err), err} // also if the context has ended
}

// retryAfter returns when it may be worth while to try again, in whole seconds.
func retryAfter(err error) time.Duration {
	var held *locker.HeldError
	var resting *locker.GracePeriodError
	var known time.Duration
	if errors.As(err, &held) {
		known = held.Remaining
	} else if errors.As(err, &resting) {
		known = resting.Remaining
	}
	return max(time.Second, (known + time.Second - 1).Truncate(time.Second))
}

// patient is a Locker whose Lock waits for at most wait, and makes one attempt if that is not positive. The lease
// outlives the context of the wait.
type patient struct {
	locker.Locker
	wait time.Duration
}

func (p patient) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	if p.wait <= 0 {
		return p.TryLock(ctx, key, opts...)
	}
	ctx, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	return p.Locker.Lock(ctx, key, opts...)
}
