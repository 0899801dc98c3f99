package locker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
)

// nodeError is an error of a backend with a field that callers may read.
type nodeError struct {
	node string
	err  error
}

func (e *nodeError) Error() string { return e.node + ": " + e.err.Error() }
func (e *nodeError) Unwrap() error { return e.err }

// Only the caller's own context decides whether it has ended. Clients that share a socket report one caller's deadline
// as the error of another caller.
func TestABackendCannotSayThatTheCallersContextEnded(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want error
	}{
		{"deadline", context.DeadlineExceeded, locker.ErrUnavailable},
		{"cancelled", &nodeError{"a", context.Canceled}, locker.ErrUnavailable},
		{"unavailable", fmt.Errorf("%w: %w", locker.ErrUnavailable, context.DeadlineExceeded), locker.ErrUnavailable},
		{"anything", &nodeError{"a", errors.New("strange")}, locker.ErrUnavailable},
		{"foreign", fmt.Errorf("%w: %w", locker.ErrForeignKey, context.Canceled), locker.ErrForeignKey},
		{"invalid", fmt.Errorf("%w: %w", locker.ErrInvalid, context.Canceled), locker.ErrInvalid},
		{"held", errors.Join(context.DeadlineExceeded, &locker.HeldError{Remaining: time.Second}), locker.ErrHeld},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, c *locker.Client) {
				fail := func(context.Context, func() error) error { return tt.err }
				l := mustLock(t, c, "k")
				s.on("acquire", fail)
				s.on("extend", fail)
				s.on("release", fail)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				_, err := c.TryLock(ctx, "other")
				for op, err := range map[string]error{"trylock": err, "extend": l.Extend(ctx),
					"unlock": l.Unlock(ctx)} {
					wantErr(t, err, tt.want)
					if !strings.Contains(err.Error(), tt.err.Error()) {
						t.Errorf("%s: %q does not say what the backend said: %q", op, err, tt.err)
					}
					var node *nodeError
					if errors.As(tt.err, &node) && !errors.As(err, &node) {
						t.Errorf("%s: the type of the backend's error is lost", op)
					}
					var held *locker.HeldError
					if tt.want == locker.ErrHeld && (!errors.As(err, &held) || held.Remaining != time.Second) {
						t.Errorf("%s: the HeldError is lost", op)
					}
				}
			})
		})
	}
}

// lateContext is a context whose timer fires late. It ends after its deadline, when another context ends.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// lateBy returns a context whose deadline is d from now, and which ends by the given time later.
func lateBy(t *testing.T, d, late time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d+late)
	t.Cleanup(cancel)
	return lateContext{ctx, time.Now().Add(d)}
}

func TestADeadlineThatHasPassedCountsBeforeItsTimerFires(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k")
		wantErr(t, l.Extend(lateBy(t, 0, time.Millisecond)), context.DeadlineExceeded)
		_, err := c.TryLock(lateBy(t, 0, time.Millisecond), "other")
		wantErr(t, err, context.DeadlineExceeded)
		if n := s.count("extend") + s.count("acquire"); n != 1 {
			t.Errorf("%d requests were sent after the deadline", n-1)
		}
	})
}

// A caller that loops until ctx.Err is not nil would otherwise try again at once, many times.
func TestErrorsDoNotReportTheEndOfAContextTooEarly(t *testing.T) {
	calls := map[string]func(ctx context.Context, c *locker.Client, l locker.Lease) error{
		"lock": func(ctx context.Context, c *locker.Client, _ locker.Lease) error {
			_, err := c.Lock(ctx, "k")
			return err
		},
		"trylock": func(ctx context.Context, c *locker.Client, _ locker.Lease) error {
			_, err := c.TryLock(ctx, "k")
			return err
		},
		"extend": func(ctx context.Context, _ *locker.Client, l locker.Lease) error { return l.Extend(ctx) },
		"unlock": func(ctx context.Context, _ *locker.Client, l locker.Lease) error { return l.Unlock(ctx) },
		"inspect": func(ctx context.Context, c *locker.Client, _ locker.Lease) error {
			_, err := c.Inspect(ctx, "k")
			return err
		},
	}
	for op, call := range calls {
		for _, deadline := range []time.Duration{0, time.Second} {
			t.Run(fmt.Sprint(op, " ", deadline), func(t *testing.T) {
				bubble(t, func(t *testing.T, s *store, c *locker.Client) {
					l := mustLock(t, c, "k")
					// atDeadline fails as a socket with the same deadline does.
					atDeadline := func(context.Context, func() error) error {
						time.Sleep(deadline)
						return locker.ErrUnavailable
					}
					for _, op := range []string{"acquire", "extend", "release"} {
						s.on(op, atDeadline)
					}
					ctx := lateBy(t, deadline, 3*time.Millisecond)
					err := call(ctx, c, l)
					if errors.Is(err, context.DeadlineExceeded) != (ctx.Err() != nil) {
						t.Errorf("%v, while the context says %v", err, ctx.Err())
					}
					if op == "lock" && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%v, want an error that matches the context's", err)
					}
				})
			})
		}
	}
}

// A context may have a deadline that it does not observe. Only its Err method counts.
func TestAContextThatOutlivesItsDeadlineHasNotEnded(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		ctx := lateContext{t.Context(), time.Now()}
		l, err := c.TryLock(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestErrorsSayWhatHappened(t *testing.T) {
	cause := errors.New("shutting down")
	tests := []struct {
		name  string
		do    func(t *testing.T, s *store, c *locker.Client) error
		want  []error
		quick bool
	}{
		{name: "held", want: []error{locker.ErrHeld}, do: func(t *testing.T, _ *store, c *locker.Client) error {
			mustLock(t, c, "k")
			_, err := c.TryLock(t.Context(), "k")
			var held *locker.HeldError
			if !errors.As(err, &held) || held.Remaining != locker.DefaultTTL {
				t.Errorf("%v does not carry the holder's remaining TTL", err)
			}
			return err
		}},
		{name: "deadline while waiting", want: []error{locker.ErrHeld, context.DeadlineExceeded},
			do: func(t *testing.T, _ *store, c *locker.Client) error {
				mustLock(t, c, "k")
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start := time.Now()
				_, err := c.Lock(ctx, "k")
				if d := time.Since(start); d != time.Second {
					t.Errorf("returned after %v", d)
				}
				return err
			}},
		{name: "cancelled while waiting", want: []error{locker.ErrHeld, context.Canceled, cause},
			do: func(t *testing.T, _ *store, c *locker.Client) error {
				mustLock(t, c, "k")
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { cancel(cause) })
				_, err := c.Lock(ctx, "k")
				return err
			}},
		{name: "deadline in an attempt after it was seen held", want: []error{locker.ErrHeld, context.DeadlineExceeded},
			do: func(t *testing.T, s *store, c *locker.Client) error {
				mustLock(t, c, "k")
				s.on("acquire", func(ctx context.Context, next func() error) error {
					s.on("acquire", hang)
					return next()
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := c.Lock(ctx, "k")
				return err
			}},
		{name: "deadline in the first attempt", want: []error{locker.ErrUnavailable, context.DeadlineExceeded},
			do: func(t *testing.T, s *store, c *locker.Client) error {
				s.on("acquire", hang)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := c.Lock(ctx, "k")
				return err
			}},
		{name: "context ended before", want: []error{context.Canceled},
			do: func(t *testing.T, s *store, c *locker.Client) error {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				_, err := c.Lock(ctx, "k")
				if s.count("acquire") != 0 {
					t.Error("an attempt was sent")
				}
				return err
			}},
		{name: "somebody else's deadline is not the caller's", want: []error{locker.ErrUnavailable},
			do: func(t *testing.T, s *store, c *locker.Client) error {
				s.on("acquire", unavailable)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				_, err := c.Lock(ctx, "k")
				return err
			}},
		{name: "unavailable is not waited for", want: []error{locker.ErrUnavailable},
			do: func(t *testing.T, s *store, c *locker.Client) error {
				s.on("acquire", unavailable)
				start := time.Now()
				_, err := c.Lock(t.Context(), "k")
				if time.Since(start) != 0 {
					t.Error("it waited")
				}
				return err
			}},
		{name: "foreign key is not waited for", want: []error{locker.ErrForeignKey},
			do: func(t *testing.T, s *store, c *locker.Client) error {
				s.on("acquire", func(context.Context, func() error) error { return locker.ErrForeignKey })
				_, err := c.Lock(t.Context(), "k")
				return err
			}},
		{name: "granted too late", want: []error{locker.ErrUnavailable},
			do: func(t *testing.T, s *store, c *locker.Client) error {
				s.on("acquire", func(_ context.Context, next func() error) error {
					err := next()
					time.Sleep(time.Second)
					return err
				})
				_, err := c.Lock(t.Context(), "k", locker.TTL(time.Second))
				synctest.Wait()
				if s.count("release") != 1 {
					t.Error("the useless grant was not released")
				}
				return err
			}},
		{name: "closed", want: []error{locker.ErrClosed}, do: func(t *testing.T, _ *store, c *locker.Client) error {
			_ = c.Close()
			_, err := c.Lock(t.Context(), "k")
			return err
		}},
		{name: "closed while waiting", want: []error{locker.ErrClosed},
			do: func(t *testing.T, _ *store, c *locker.Client) error {
				mustLock(t, c, "k")
				time.AfterFunc(time.Second, func() { _ = c.Close() })
				_, err := c.Lock(t.Context(), "k")
				return err
			}},
		{name: "closed during the attempt", want: []error{locker.ErrClosed},
			do: func(t *testing.T, s *store, c *locker.Client) error {
				s.on("acquire", func(_ context.Context, next func() error) error {
					_ = c.Close()
					return next()
				})
				_, err := c.Lock(t.Context(), "k")
				synctest.Wait()
				if s.count("release") != 1 {
					t.Error("the grant was not released")
				}
				return err
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, c *locker.Client) {
				err := tt.do(t, s, c)
				wantErr(t, err, tt.want...)
				var e *locker.Error
				if !errors.As(err, &e) || e.Key != "k" || !strings.Contains(err.Error(), `"k"`) {
					t.Errorf("%v is not a *locker.Error that names the key", err)
				}
			})
		})
	}
}
