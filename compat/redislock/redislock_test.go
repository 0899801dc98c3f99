package redislock_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/golocker/locker"
	"github.com/golocker/locker/compat/redislock"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/lockertrace"
)

// is fails the test unless err is target itself: programs compare these errors by ==.
func is(t *testing.T, err, target error) {
	t.Helper()
	if err != target {
		t.Errorf("%v, want %v", err, target)
	}
}

func TestObtainAndRelease(t *testing.T) {
	p := newProgram(t)
	for range 2 {
		l := p.obtain(nil)
		if l.Key() != key || len(l.Token()) < 22 || l.Metadata() != "" {
			t.Errorf("key %q, token %q, metadata %q", l.Key(), l.Token(), l.Metadata())
		}
		_, err := redislock.New(p.another()).Obtain(t.Context(), key, time.Hour, nil)
		is(t, err, redislock.ErrNotObtained)
		_, err = l.Obtain(t.Context(), key, time.Hour, &redislock.Options{RetryStrategy: redislock.NoRetry()})
		is(t, err, redislock.ErrNotObtained)
		is(t, l.Release(t.Context()), nil)
		is(t, l.Release(t.Context()), redislock.ErrLockNotHeld)
	}
}

func TestOneOfManyCallersObtains(t *testing.T) {
	p := newProgram(t)
	const callers = 30
	var got atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		client := p.client
		if i%2 == 0 {
			client = p.another()
		}
		wg.Go(func() {
			switch _, err := redislock.Obtain(t.Context(), client, key, time.Hour, nil); err {
			case nil:
				got.Add(1)
			case redislock.ErrNotObtained:
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got.Load() != 1 {
		t.Errorf("%d callers have the lock", got.Load())
	}
}

func TestMetadataIsTheLabel(t *testing.T) {
	p := newProgram(t)
	l := p.obtain(&redislock.Options{Metadata: "order 42 of web-7"})
	if l.Metadata() != "order 42 of web-7" {
		t.Errorf("metadata %q", l.Metadata())
	}
	seen, err := redislock.New(p.another()).Locker().Inspect(t.Context(), key)
	if err != nil || seen.Label != "order 42 of web-7" || seen.State != inspect.Held ||
		!strings.HasPrefix(l.Token(), seen.Owner) {
		t.Errorf("%+v, %v", seen, err)
	}
	_, err = redislock.Obtain(t.Context(), p.client, "other", time.Hour,
		&redislock.Options{Metadata: strings.Repeat("x", 65)})
	if !errors.Is(err, locker.ErrInvalid) {
		t.Errorf("metadata that does not fit: %v", err)
	}
	if keys := p.server.Keys(t, "o*"); len(keys) != 1 || keys[0] != key {
		t.Errorf("the keys are %q", keys)
	}
}

// A lock of a few milliseconds is over before the last retry.
func TestRetriesUntilTheLockIsFree(t *testing.T) {
	p := newProgram(t)
	p.server.Cmd(t, "SET", key, "of another library", "PX", 300)
	l, err := redislock.Obtain(t.Context(), p.another(), key, time.Hour,
		&redislock.Options{RetryStrategy: redislock.LinearBackoff(20 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	is(t, l.Release(t.Context()), nil)
}

func TestRetriesEnd(t *testing.T) {
	p := newProgram(t)
	p.obtain(nil)
	strategy := redislock.LimitRetry(redislock.LinearBackoff(5*time.Millisecond), 2)
	_, err := redislock.Obtain(t.Context(), p.another(), key, time.Hour, &redislock.Options{RetryStrategy: strategy})
	is(t, err, redislock.ErrNotObtained)
	if d := strategy.NextBackoff(); d != 0 {
		t.Errorf("there is a retry of %v left", d)
	}
}

// The pause is longer than the test may take, so the waiter is told by the release.
func TestWaiterIsToldByTheRelease(t *testing.T) {
	p := newProgram(t)
	first := p.obtain(nil)
	waits := make(chan struct{})
	ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { close(waits) }})
	client := p.another()
	got := make(chan error, 1)
	go func() {
		_, err := redislock.Obtain(ctx, client, key, time.Hour,
			&redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Hour)})
		got <- err
	}()
	<-waits
	is(t, first.Release(t.Context()), nil)
	is(t, <-got, nil)
}

// As above, with a program that has not moved: its release tells nobody, and compares the value.
func TestWaiterBehindAProgramThatHasNotMoved(t *testing.T) {
	p := newProgram(t)
	const release = `return redis.call("GET", KEYS[1]) == ARGV[1] and redis.call("DEL", KEYS[1])`
	p.server.Cmd(t, "SET", key, "theirs", "NX", "PX", 600000)
	waits := make(chan struct{})
	ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { close(waits) }})
	client := p.another()
	got := make(chan error, 1)
	go func() {
		_, err := redislock.Obtain(ctx, client, key, time.Hour,
			&redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Hour)})
		got <- err
	}()
	<-waits
	if deleted := p.server.Cmd(t, "EVAL", release, 1, key, "theirs"); deleted != int64(1) {
		t.Errorf("the release answers %v", deleted)
	}
	is(t, <-got, nil)
}

func TestContextEndsObtain(t *testing.T) {
	p := newProgram(t)
	p.obtain(nil)
	strategy := &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Minute)}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := redislock.Obtain(ctx, p.another(), key, time.Hour, strategy)
	if !errors.Is(err, redislock.ErrNotObtained) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a context that ends: %v", err)
	}
	// Without a deadline, the TTL is one.
	_, err = redislock.Obtain(t.Context(), p.another(), key, 100*time.Millisecond, strategy)
	if !errors.Is(err, redislock.ErrNotObtained) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a TTL that ends: %v", err)
	}
}

func TestTTLIsThatOfTheServer(t *testing.T) {
	p := newProgram(t)
	l := p.obtain(nil)
	for _, left := range []time.Duration{time.Hour, 30 * time.Minute} {
		p.server.Cmd(t, "PEXPIRE", key, left.Milliseconds())
		ttl, err := l.TTL(t.Context())
		if err != nil || ttl > left || ttl < left-10*time.Minute {
			t.Errorf("%v, %v, want about %v", ttl, err, left)
		}
	}
	p.server.Cmd(t, "SET", key, "of another owner", "PX", 3_600_000)
	ttl, err := l.TTL(t.Context())
	if ttl != 0 || err != nil {
		t.Errorf("of another owner's lock: %v, %v", ttl, err)
	}
	p.server.Cmd(t, "DEL", key)
	l = p.obtain(nil)
	is(t, l.Release(t.Context()), nil)
	if ttl, err := l.TTL(t.Context()); ttl != 0 || err != nil {
		t.Errorf("after Release: %v, %v", ttl, err)
	}
}

func TestRefresh(t *testing.T) {
	p := newProgram(t)
	l := p.obtain(nil)
	p.server.Cmd(t, "PEXPIRE", key, time.Minute.Milliseconds()) // as if an hour were nearly over
	is(t, l.Refresh(t.Context(), 2*time.Hour, nil), nil)
	if left := p.server.PTTL(t, key); left < time.Hour {
		t.Errorf("refreshed to %v", left)
	}
	is(t, l.Refresh(t.Context(), time.Minute, nil), nil)
	if left := p.server.PTTL(t, key); left < time.Hour {
		t.Errorf("shortened to %v", left)
	}
	if err := l.Refresh(t.Context(), time.Millisecond, nil); !errors.Is(err, locker.ErrInvalid) {
		t.Errorf("a TTL of a millisecond: %v", err)
	}
	is(t, l.Release(t.Context()), nil)
	is(t, l.Refresh(t.Context(), time.Hour, nil), redislock.ErrNotObtained)
}

// failing is a hook of go-redis that fails so many commands before they are sent.
type failing struct{ left atomic.Int64 }

var errFailing = errors.New("the connection is broken")

func (*failing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f *failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if f.left.Add(-1) >= 0 {
			return errFailing
		}
		return next(ctx, cmd)
	}
}

func TestRefreshTriesAgain(t *testing.T) {
	p := newProgram(t)
	l := p.obtain(nil)
	hook := &failing{}
	p.client.AddHook(hook)
	attempts := func(n int) *redislock.Options {
		return &redislock.Options{RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(time.Millisecond), n)}
	}
	p.server.Cmd(t, "PEXPIRE", key, time.Minute.Milliseconds())
	hook.left.Store(2)
	is(t, l.Refresh(t.Context(), time.Hour, attempts(5)), nil)
	if left := p.server.PTTL(t, key); hook.left.Load() >= 0 || left < 30*time.Minute {
		t.Errorf("%d failures are left, and %v of the lock", hook.left.Load()+1, left)
	}
	for n, opt := range []*redislock.Options{nil, attempts(1)} {
		hook.left.Store(10)
		if err := l.Refresh(t.Context(), time.Hour, opt); !errors.Is(err, locker.ErrUnavailable) ||
			!errors.Is(err, errFailing) || hook.left.Load() != int64(9-n) {
			t.Errorf("after %d attempts: %v", 10-hook.left.Load(), err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	hook.left.Store(1000)
	err := l.Refresh(ctx, time.Hour, &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Hour)})
	if !errors.Is(err, errFailing) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a context that ends: %v", err)
	}
	hook.left.Store(0)
	is(t, l.Release(t.Context()), nil)
	is(t, l.Refresh(t.Context(), time.Hour, attempts(1)), redislock.ErrNotObtained)
}

// Programs wrap a client to add methods of their own.
func TestClientsThatEmbedOne(t *testing.T) {
	p := newProgram(t)
	lock := p.obtain(nil)
	if keys := lock.Keys(); len(keys) != 1 || keys[0] != key {
		t.Errorf("keys %q", keys)
	}
	type embeds struct{ *redis.Client }
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": p.server.Addr()}})
	defer func() { _ = ring.Close() }()
	for name, c := range map[string]redislock.RedisClient{
		"by value": embeds{p.client}, "by pointer": &embeds{p.client}, "twice": struct{ embeds }{embeds{p.client}},
		"as an interface": struct{ redis.UniversalClient }{p.client},
	} {
		if redislock.New(c).Locker() != redislock.New(p.client).Locker() {
			t.Errorf("%s: the client within is not used", name)
		}
	}
	for name, c := range map[string]redislock.RedisClient{
		"none": struct{ redis.UniversalClient }{}, "a ring": &struct{ *redis.Ring }{ring},
	} {
		l := redislock.New(c)
		if _, err := l.Obtain(t.Context(), key, time.Hour, nil); err == nil || errors.Is(err, redislock.ErrNotObtained) {
			t.Errorf("%s: %v", name, err)
		}
		_ = l.Locker().Close()
	}
}

func TestLockThatIsOver(t *testing.T) {
	p := newProgram(t)
	is(t, p.expired().Refresh(t.Context(), time.Hour, nil), redislock.ErrNotObtained)
	is(t, p.expired().Release(t.Context()), redislock.ErrLockNotHeld)
	l := p.expired()
	if ttl, err := l.TTL(t.Context()); ttl != 0 || err != nil {
		t.Errorf("TTL: %v, %v", ttl, err)
	}
	other := p.obtain(nil)
	is(t, l.Release(t.Context()), redislock.ErrLockNotHeld)
	is(t, other.Release(t.Context()), nil)
}

func TestReleaseSparesAnotherOwner(t *testing.T) {
	p := newProgram(t)
	l := p.obtain(nil)
	p.server.Cmd(t, "SET", key, "of another owner")
	is(t, l.Release(t.Context()), redislock.ErrLockNotHeld)
	_, err := redislock.Obtain(t.Context(), p.client, key, time.Hour, nil)
	if !errors.Is(err, redislock.ErrNotObtained) || !errors.Is(err, locker.ErrForeignKey) {
		t.Errorf("a key without an expiry: %v", err)
	}
}

func TestReleaseWorksAfterTheContext(t *testing.T) {
	p := newProgram(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	is(t, p.obtain(nil).Release(ctx), nil)
	p.obtain(nil)
}

func TestLockThatWasNotObtained(t *testing.T) {
	var l *redislock.Lock
	is(t, l.Release(t.Context()), redislock.ErrLockNotHeld)
	is(t, l.Refresh(t.Context(), time.Hour, nil), redislock.ErrNotObtained)
	_, err := l.TTL(t.Context())
	is(t, err, redislock.ErrLockNotHeld)
}

func TestArguments(t *testing.T) {
	p := newProgram(t)
	for _, ttl := range []time.Duration{0, time.Millisecond, 25 * time.Hour} {
		_, err := redislock.Obtain(t.Context(), p.client, key, ttl, nil)
		if !errors.Is(err, locker.ErrInvalid) {
			t.Errorf("a TTL of %v: %v", ttl, err)
		}
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": p.server.Addr()}})
	defer func() { _ = ring.Close() }()
	l := redislock.New(ring)
	defer func() { _ = l.Locker().Close() }()
	_, err := l.Obtain(t.Context(), key, time.Hour, nil)
	if err == nil || !strings.Contains(err.Error(), "redis.Ring") {
		t.Errorf("a ring: %v", err)
	}
}

func TestServerThatIsDown(t *testing.T) {
	p := newProgram(t)
	l := p.obtain(nil)
	p.server.Kill()
	_, err := redislock.Obtain(t.Context(), p.client, "other", time.Hour,
		&redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Hour)})
	if !errors.Is(err, locker.ErrUnavailable) || errors.Is(err, redislock.ErrNotObtained) {
		t.Errorf("Obtain: %v", err)
	}
	if _, err := l.TTL(t.Context()); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("TTL: %v", err)
	}
	if err := l.Refresh(t.Context(), time.Hour, nil); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("Refresh: %v", err)
	}
	if err := l.Release(t.Context()); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("Release: %v", err)
	}
	p.server.Restart()
	for { // go-redis fails for up to a second more, when it has failed for a while
		_, err := redislock.Obtain(t.Context(), p.client, key, time.Hour, nil)
		if err == nil {
			return
		}
		if !errors.Is(err, locker.ErrUnavailable) {
			t.Fatal(err)
		}
	}
}

func TestCluster(t *testing.T) {
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: redistest.StartCluster(t, 3, false).Addrs()})
	l := redislock.New(c)
	t.Cleanup(func() {
		_ = l.Locker().Close()
		_ = c.Close()
	})
	for _, key := range []string{"a", "b", "c", "d"} {
		lock, err := l.Obtain(t.Context(), key, time.Hour, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Obtain(t.Context(), key, time.Hour, nil)
		is(t, err, redislock.ErrNotObtained)
		is(t, lock.Release(t.Context()), nil)
	}
}

func TestBackoffs(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		s    redislock.RetryStrategy
		want []time.Duration
	}{
		"none":             {redislock.NoRetry(), []time.Duration{0, 0}},
		"linear":           {redislock.LinearBackoff(time.Second), []time.Duration{time.Second, time.Second}},
		"limited":          {redislock.LimitRetry(redislock.LinearBackoff(ms), 2), []time.Duration{ms, ms, 0, 0}},
		"exponential":      {redislock.ExponentialBackoff(0, 0), []time.Duration{4 * ms, 8 * ms, 16 * ms, 32 * ms}},
		"bounded":          {redislock.ExponentialBackoff(10*ms, 20*ms), []time.Duration{10 * ms, 10 * ms, 16 * ms, 20 * ms}},
		"the wrong way":    {redislock.ExponentialBackoff(20*ms, 10*ms), []time.Duration{20 * ms, 20 * ms, 20 * ms}},
		"limited for ever": {redislock.LimitRetry(redislock.NoRetry(), 1), []time.Duration{0, 0}},
	} {
		for i, want := range c.want {
			if got := c.s.NextBackoff(); got != want {
				t.Errorf("%s: backoff %d is %v, want %v", name, i, got, want)
			}
		}
	}
	endless := redislock.ExponentialBackoff(0, 0)
	for range 100 {
		endless.NextBackoff()
	}
	if d := endless.NextBackoff(); d < time.Hour || d > 24*time.Hour {
		t.Errorf("a late backoff is %v", d)
	}
}

// Programs call New and Obtain for each lock. They share one Client, which goes when nobody has it.
func TestClientsAreShared(t *testing.T) {
	p := newProgram(t)
	one, two := redislock.New(p.client).Locker(), redislock.New(p.client).Locker()
	if one != two {
		t.Error("two Clients of one client of go-redis")
	}
	if redislock.New(p.client).Locker() == redislock.New(p.another()).Locker() {
		t.Error("one Client of two clients of go-redis")
	}
	c := redis.NewClient(&redis.Options{Addr: p.server.Addr()})
	gone := make(chan struct{})
	func() {
		l, err := redislock.Obtain(t.Context(), c, "other", time.Hour, nil)
		if err != nil {
			t.Fatal(err)
		}
		runtime.AddCleanup(l.Locker(), func(gone chan struct{}) { close(gone) }, gone)
		is(t, l.Release(t.Context()), nil)
	}()
	for over := false; !over; {
		runtime.GC()
		select {
		case <-gone:
			over = true
		default:
		}
	}
	l, err := redislock.Obtain(t.Context(), c, "other", time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	is(t, l.Release(t.Context()), nil)
	_ = l.Locker().Close()
	_ = c.Close()
}
