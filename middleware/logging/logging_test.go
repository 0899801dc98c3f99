package logging_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/logging"
)

// At level Info, neither success nor errors that are returned to the caller are logged.
func TestSuccessIsNotLogged(t *testing.T) {
	bubble(t, slog.LevelInfo, nil, func(t *testing.T, j *journal, _ *store, l locker.Locker) {
		lease := mustLock(t, l, "k")
		if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
		defer cancel()
		if _, err := l.Lock(ctx, "k"); !errors.Is(err, locker.ErrHeld) {
			t.Error(err)
		}
		if err := lease.Extend(t.Context()); err != nil {
			t.Error(err)
		}
		mustUnlock(t, lease)
		if err := lease.Unlock(t.Context()); !errors.Is(err, locker.ErrUnlocked) {
			t.Error(err)
		}
		if _, err := l.TryLock(t.Context(), ""); err == nil {
			t.Error("an empty key")
		}
		j.wantNews(t)
	})
}

func TestDebugging(t *testing.T) {
	bubble(t, slog.LevelDebug, nil, func(t *testing.T, j *journal, s *store, l locker.Locker) {
		lease := mustLock(t, l, "k", locker.Label("web-7"))
		j.wantNews(t, "DEBUG lock acquired fence=1 key=k took=0")
		_, _ = l.TryLock(t.Context(), "k")
		j.wantNews(t, "DEBUG lock not acquired err=held by web-7 for 10 s unless renewed key=k took=0")
		time.Sleep(4 * time.Second)
		j.wantNews(t, "DEBUG lock renewed fence=1 key=k took=0")
		_ = lease.Extend(t.Context())
		j.wantNews(t, "DEBUG lock extended fence=1 key=k took=0")
		time.AfterFunc(time.Second, func() { mustUnlock(t, lease) })
		next := mustLock(t, l, "k")
		j.wantNews(t, "DEBUG waiting for lock holder=web-7 key=k remaining=*",
			"DEBUG lock released fence=1 held=5e+09 key=k",
			"DEBUG lock acquired fence=2 key=k took=* waited=*")
		_ = lease.Unlock(t.Context())
		j.wantNews(t, "DEBUG lock not released err=already unlocked fence=1 held=* key=k")
		s.steal(t, next)
		_ = next.Extend(t.Context())
		j.wantNews(t, "WARN lock lost fence=2 held=0 key=k reason=gone",
			"DEBUG lock not extended err=* fence=2 key=k took=0")
		_ = next.Unlock(t.Context())
		j.wantNews(t, "DEBUG lock not released err=no longer held: lock lost: gone fence=2 held=0 key=k")
	})
}

// A loss is logged once, whether a renewal, a timer or Unlock notices it.
func TestLoss(t *testing.T) {
	bubble(t, slog.LevelInfo, nil, func(t *testing.T, j *journal, s *store, l locker.Locker) {
		lease := mustLock(t, l, "expired", locker.NoRenewal())
		time.Sleep(10 * time.Second)
		j.wantNews(t, "WARN lock lost fence=1 held=* key=expired reason=expired")
		_ = lease.Unlock(t.Context())

		lease = mustLock(t, l, "stolen")
		s.steal(t, lease)
		time.Sleep(4 * time.Second)
		j.wantNews(t, "WARN lock lost fence=2 held=* key=stolen reason=gone")
		_ = lease.Unlock(t.Context())

		lease = mustLock(t, l, "unlocked")
		s.steal(t, lease)
		_ = lease.Unlock(t.Context()) // as in a deferred call
		j.wantNews(t, "WARN lock lost fence=3 held=0 key=unlocked reason=gone")

		lease = mustLock(t, l, "long", locker.MaxHold(time.Second))
		time.Sleep(time.Second)
		j.wantNews(t, "WARN lock lost fence=4 held=* key=long reason=max hold reached")
		mustUnlock(t, lease)

		mustLock(t, l, "closed")
		c, _ := locker.As[io.Closer](l)
		_ = c.Close()
		j.wantNews(t, "INFO lock lost fence=5 held=0 key=closed reason=closed")
	})
}

func TestDoubtIsLoggedOnce(t *testing.T) {
	bubble(t, slog.LevelInfo, nil, func(t *testing.T, j *journal, s *store, l locker.Locker) {
		lease := mustLock(t, l, "k")
		for range 2 {
			time.Sleep(time.Second)
			s.fail(errDown)
			time.Sleep(5 * time.Second)
			s.fail(nil)
			time.Sleep(5 * time.Second)
			j.wantNews(t, "WARN lock in doubt err=lock store unavailable: connection refused fence=1 key=k",
				"INFO lock renewed again fence=1 key=k")
		}
		s.fail(errDown)
		time.Sleep(20 * time.Second)
		j.wantNews(t, "WARN lock in doubt err=* fence=1 key=k", "WARN lock lost fence=1 held=* key=k reason=expired")
		if !errors.Is(lease.Err(), locker.ErrLost) {
			t.Error(lease.Err())
		}
	})
}

// An outage of the store is logged in two lines, however many calls fail, and even if the store recovers for short
// times.
func TestStore(t *testing.T) {
	bubble(t, slog.LevelInfo, nil, func(t *testing.T, j *journal, s *store, l locker.Locker) {
		try := func() {
			if lease, err := l.TryLock(t.Context(), "k"); err == nil {
				mustUnlock(t, lease)
			}
		}
		lease := mustLock(t, l, "held", locker.TTL(time.Hour), locker.NoRenewal())
		s.fail(errDown)
		for range 50 {
			try()
			_, _ = l.Lock(t.Context(), "other")
			_ = lease.Extend(t.Context())
		}
		j.wantNews(t, "WARN lock store unavailable err=lock store unavailable: connection refused")
		for range 50 { // every other call fails
			s.fail(nil)
			try()
			s.fail(errDown)
			try()
			time.Sleep(time.Second)
		}
		s.fail(nil)
		time.Sleep(3900 * time.Millisecond)
		try()
		j.wantNews(t)
		time.Sleep(100 * time.Millisecond)
		_ = lease.Extend(t.Context())
		j.wantNews(t, "INFO lock store answers again down=4.9e+10")

		s.fail(errDown)
		_ = lease.Unlock(t.Context())
		j.wantNews(t, "WARN lock store unavailable err=lock store unavailable: connection refused")
		time.Sleep(time.Minute)
		s.fail(locker.ErrHeld) // an answer, too
		try()
		j.wantNews(t, "INFO lock store answers again down=0")
	})
}

// A call that failed because its own context ended or because the Client was closed does not count as a failure of the
// store.
func TestOwnContextIsNoOutage(t *testing.T) {
	bubble(t, slog.LevelInfo, nil, func(t *testing.T, j *journal, s *store, l locker.Locker) {
		s.fail(errDown)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		late, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		s.fail(nil)
		lease := mustLock(t, l, "held", locker.TTL(time.Hour), locker.NoRenewal())
		s.fail(errDown)
		for _, ctx := range []context.Context{ctx, late} {
			_, _ = l.TryLock(ctx, "k")
			_, _ = l.Lock(ctx, "k")
			_ = lease.Extend(ctx)
			_ = lease.Unlock(ctx)
		}
		s.fail(locker.ErrClosed)
		_, _ = l.TryLock(t.Context(), "k")
		j.wantNews(t)
	})
}

func TestLongWait(t *testing.T) {
	bubble(t, slog.LevelInfo, []logging.Option{logging.LongWait(20 * time.Second)},
		func(t *testing.T, j *journal, _ *store, l locker.Locker) {
			holder := mustLock(t, l, "k", locker.Label("web-7"))
			time.AfterFunc(30*time.Second, func() {
				j.wantNews(t, "INFO still waiting for lock holder=web-7 key=k waited=2e+10")
				mustUnlock(t, holder)
			})
			next := mustLock(t, l, "k")
			j.wantNews(t, "INFO lock acquired fence=2 key=k took=* waited=*")
			time.AfterFunc(19*time.Second, func() { mustUnlock(t, next) })
			mustUnlock(t, mustLock(t, l, "k"))
			time.Sleep(time.Minute)
			j.wantNews(t)
		})
}

// again is a Locker that waits in two calls, as one with package retry does when the store fails meanwhile.
type again struct{ locker.Locker }

func (a again) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	first, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if l, err := a.Locker.Lock(first, key, opts...); err == nil {
		return l, nil
	}
	return a.Locker.Lock(ctx, key, opts...)
}

// A call that waits twice is logged like one that waits once, and not after it has returned.
func TestLongWaitOfACallThatIsRetried(t *testing.T) {
	bubble(t, slog.LevelInfo, nil, func(t *testing.T, j *journal, _ *store, l locker.Locker) {
		inner := l.(interface{ Unwrap() locker.Locker }).Unwrap()
		l = locker.Wrap(again{inner}, logging.New(j.logger(slog.LevelInfo), logging.LongWait(20*time.Second)))
		holder := mustLock(t, inner, "k")
		time.AfterFunc(15*time.Second, func() { mustUnlock(t, holder) })
		holder = mustLock(t, l, "k")
		time.Sleep(time.Minute)
		j.wantNews(t)
		time.AfterFunc(25*time.Second, func() {
			j.wantNews(t, "INFO still waiting for lock holder=* key=k waited=2e+10")
			mustUnlock(t, holder)
		})
		mustUnlock(t, mustLock(t, l, "k"))
		j.wantNews(t, "INFO lock acquired fence=3 key=k took=* waited=*")
	})
}

func TestKeys(t *testing.T) {
	const secret = "customer-4711"
	long := strings.Repeat("x", 63) + "é" + strings.Repeat("y", 60_000)
	hash := func(key string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(key)))[:8] }
	for name, tt := range map[string]struct {
		opts      []logging.Option
		key, want string
	}{
		"as they are":       {nil, "a b\n=", "a b\n="},
		"not as long as is": {nil, long, strings.Repeat("x", 63) + "…"},
		"hashed":            {[]logging.Option{logging.Key(hash)}, secret, hash(secret)},
		"not at all":        {[]logging.Option{logging.Key(func(string) string { return "" })}, secret, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, slog.LevelDebug, tt.opts, func(t *testing.T, j *journal, s *store, l locker.Locker) {
				lease := mustLock(t, l, tt.key)
				_, _ = l.TryLock(t.Context(), tt.key)
				s.fail(errDown)
				_, _ = l.TryLock(t.Context(), tt.key)
				_ = lease.Extend(t.Context())
				time.Sleep(5 * time.Second)
				s.fail(nil)
				_ = lease.Unlock(t.Context())
				_ = lease.Unlock(t.Context())
				records := j.news(t)
				if len(records) < 8 {
					t.Errorf("%d records", len(records))
				}
				for _, r := range records {
					if got, ok := r["key"]; !strings.HasPrefix(fmt.Sprint(r["msg"]), "lock store") &&
						(ok != (tt.want != "") || ok && got != tt.want) {
						t.Errorf("key is %q, want %q", got, tt.want)
					}
				}
				if strings.Contains(j.all(), secret) {
					t.Errorf("a key that was to be hidden is in %s", j.all())
				}
			})
		})
	}
}

func TestLevel(t *testing.T) {
	for level, want := range map[slog.Level]int{slog.LevelDebug: 2, slog.LevelInfo: 1, slog.LevelWarn: 1,
		slog.LevelError: 0} {
		bubble(t, slog.LevelDebug, []logging.Option{logging.Level(level)},
			func(t *testing.T, j *journal, _ *store, l locker.Locker) {
				mustLock(t, l, "k", locker.NoRenewal())
				time.Sleep(time.Minute)
				if got := len(j.news(t)); got != want {
					t.Errorf("%d records from %v on, want %d", got, level, want)
				}
			})
	}
}

// Records that are not enabled cost little. If not even warnings are enabled, the middleware costs nothing.
func TestAllocations(t *testing.T) {
	c := memory.New()
	defer c.Close()
	cycle := func(l locker.Locker) float64 {
		return testing.AllocsPerRun(200, func() {
			lease, _ := l.TryLock(t.Context(), "k")
			_ = lease.Unlock(t.Context())
		})
	}
	at := func(level slog.Level) float64 {
		return cycle(locker.Wrap(c,
			logging.New(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: level})))))
	}
	plain, silent, info := cycle(c), at(slog.LevelError), at(slog.LevelInfo)
	if silent != plain {
		t.Errorf("%v allocations where nothing is logged, %v without", silent, plain)
	}
	if info > plain+7 { // the record of the call, four hooks, and two contexts
		t.Errorf("%v allocations at level info, %v without", info, plain)
	}
}

func TestUnwrap(t *testing.T) {
	c := memory.New()
	if got, _ := locker.As[*locker.Client](locker.Wrap(c, logging.New(nil))); got != c {
		t.Error("the Client is hidden")
	}
	_ = c.Close()
}
