package conformance

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/clientwait"
)

// moments returns the times at which the contexts of a sweep end: before, during and after a request. The steps between
// them grow.
func moments(n int) []time.Duration {
	ms := make([]time.Duration, n)
	for i := range ms {
		ms[i] = time.Duration(i*i/10) * time.Microsecond
	}
	return ms
}

// fewMoments returns a subset of the moments, for sweeps that are repeated. Each turn gets a different subset.
func fewMoments(turn int) (ms []time.Duration) {
	for i, moment := range moments(120) {
		if i%12 == 4*turn%12 {
			ms = append(ms, moment)
		}
	}
	return ms
}

// endingAfter returns a context that is cancelled after d. If d is 0, the context has already ended.
func endingAfter(t testing.TB, d time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancel(t.Context())
	if d == 0 {
		cancel()
		return ctx, cancel
	}
	timer := time.AfterFunc(d, cancel)
	return ctx, func() {
		timer.Stop()
		cancel()
	}
}

// abandon makes attempts whose contexts end at all moments. Each attempt finds the lock free unless an earlier attempt
// has left something behind.
func abandon(t testing.TB, bs []backend.Backend, ttl time.Duration) {
	t.Helper()
	for i, moment := range moments(120) {
		ctx, cancel := endingAfter(t, moment)
		var o *holding
		_ = within(t, "Acquire with a context that ends", moment, func() (err error) {
			o, err = acquire(ctx, bs[i%len(bs)], "k", ttl)
			return err
		})
		cancel()
		if o != nil {
			_ = o.release(t.Context())
		}
	}
}

func cancelledAcquireExpires(t testing.TB, h Harness) {
	bs, _ := backends(t, h, 2)
	for range 3 {
		abandon(t, bs, h.ttl(h.short()/15))
	}
	o, _ := grabWhenFree(t, bs[0], "k", longTTL, h.short()+hangLimit)
	o.must(t)
}

func cancelledReleaseReleases(t testing.TB, h Harness) {
	bs, _ := backends(t, h, 2)
	for i, moment := range moments(60) {
		o, _ := grabWhenFree(t, bs[i%2], "k", longTTL, hangLimit)
		ctx, cancel := endingAfter(t, moment)
		err := within(t, "Release with a context that ends", moment, func() error { return o.release(ctx) })
		if err != nil {
			wantUnknown(t, "Release with a context that ends", err)
		}
		cancel()
	}
	o, _ := grabWhenFree(t, bs[0], "k", longTTL, hangLimit)
	o.must(t)
}

// method is a method of a Backend that takes a context, bound to its other arguments.
type method struct {
	name string
	call func(ctx context.Context) error
}

// methods returns all such methods of b, each with its own lock.
func methods(t testing.TB, b backend.Backend) []method {
	t.Helper()
	extended, released := grab(t, b, "extended", longTTL), grab(t, b, "released", longTTL)
	ms := []method{
		{"Acquire", func(ctx context.Context) error {
			_, err := acquire(ctx, b, "acquired", longTTL)
			return err
		}},
		{"Extend", func(ctx context.Context) error { return extended.extend(ctx, longTTL) }},
		{"Release", released.release},
	}
	if q, ok := b.(backend.Queuer); ok {
		ms = append(ms, method{"Queue", func(ctx context.Context) error {
			wait, _ := clientwait.New(ctx, locker.Patience(0))
			_, err := q.Queue(ctx, request("queued", longTTL), wait)
			return err
		}})
	}
	return append(ms, stepMethods(b)...)
}

// failing injects a fault until mend is called or the check ends.
func failing(t testing.TB, breakdown func() func()) (mend func()) {
	mended := false
	restore := breakdown()
	mend = func() {
		if !mended {
			mended = true
			restore()
		}
	}
	t.Cleanup(mend)
	return mend
}

func contextEndIsPrompt(t testing.TB, h Harness) {
	bs, s := backends(t, h, 1)
	if s.Hang == nil {
		t.Skip("the harness has no Hang")
	}
	bound, tries := h.milliseconds()
	all := methods(t, bs[0])
	defer failing(t, s.Hang)()
	for _, cancelled := range []bool{false, true} {
		what := "its deadline"
		if cancelled {
			what = "its cancellation"
		}
		for _, m := range all {
			best := time.Hour
			for n := 0; n < tries && best > bound; n++ {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), stall)
				if cancelled {
					cancel()
					ctx, cancel = endingAfter(t, stall)
				}
				_ = within(t, m.name+" of a store that hangs", stall, func() error { return m.call(ctx) })
				cancel()
				best = min(best, time.Since(start)-stall)
			}
			if best > bound {
				t.Errorf("%s of a store that hangs: expected it to return within milliseconds of %s, seen it return "+
					"%v later", m.name, what, best)
			}
		}
	}
}

func noAnswerIsUnavailable(t testing.TB, h Harness) {
	checked := false
	check := func(how string, fault func(s Store) func() func(), limit time.Duration) {
		bs, s := backends(t, h, 1)
		if fault(s) == nil {
			return
		}
		checked = true
		all := methods(t, bs[0])
		defer failing(t, fault(s))()
		for _, m := range all {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			what := m.name + " of a store that " + how
			err := within(t, what, limit, func() error { return m.call(ctx) })
			cancel()
			if m.name == "Acquire" || m.name == "AcquireMany" || m.name == "Queue" {
				wantKind(t, what, err, locker.ErrUnavailable)
			} else {
				wantUnknown(t, what, err)
			}
		}
	}
	check("hangs", func(s Store) func() func() { return s.Hang }, stall)
	check("is unreachable", func(s Store) func() func() { return s.Down }, slack)
	if !checked {
		t.Skip("the harness has no Hang and no Down")
	}
}

func recoversFromOutage(t testing.TB, h Harness) {
	bs, s := backends(t, h, 2)
	if s.Down == nil {
		t.Skip("the harness has no Down")
	}
	grab(t, bs[0], "before", longTTL).must(t)
	for range 2 {
		mend := failing(t, s.Down)
		for i := range 6 { // some clients treat the third failure differently from the first
			ctx, cancel := context.WithTimeout(t.Context(), slack)
			if o, err := acquire(ctx, bs[i%2], "k", longTTL); err == nil {
				t.Error("Acquire of a store that is unreachable: expected an error, seen a grant")
				_ = o.release(ctx)
			}
			cancel()
		}
		mend()
		for _, b := range bs {
			o, _ := grabWhenFree(t, b, "k", longTTL, recovery)
			if err := o.extend(t.Context(), longTTL); err != nil {
				t.Errorf("Extend after the outage: expected no error, seen %v", err)
			}
			o.must(t)
		}
	}
}

func releaseGoesOn(t testing.TB, h Harness) {
	bs, s := backends(t, h, 2)
	if s.Down == nil {
		t.Skip("the harness has no Down")
	}
	o := grab(t, bs[0], "k", longTTL)
	mend := failing(t, s.Down)
	defer mend()
	ctx, cancel := context.WithTimeout(t.Context(), stall)
	err := within(t, "Release to a store that is unreachable", stall, func() error { return o.release(ctx) })
	cancel()
	if err == nil {
		t.Error("Release to a store that is unreachable: expected an error, seen none")
	}
	mend()
	settled(t, bs[1], "k")
}

func lostReplyIsNoAnswer(t testing.TB, h Harness) {
	bs, s := backends(t, h, 2)
	if s.LoseReply == nil {
		t.Skip("the harness has no LoseReply")
	}
	settled(t, bs[0], "k", "other") // so that connections and scripts exist
	call := func(what string, f func(ctx context.Context) error) error {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), slack)
		defer cancel()
		s.LoseReply()
		return within(t, what+", its reply lost", slack, func() error { return f(ctx) })
	}
	var o *holding
	err := call("Acquire", func(ctx context.Context) (err error) {
		o, err = acquire(ctx, bs[0], "k", longTTL)
		return err
	})
	if err != nil {
		wantKind(t, "Acquire of a free lock, its reply lost", err, locker.ErrUnavailable)
		o, _ = grabWhenFree(t, bs[1], "k", longTTL, recovery)
	}
	err = call("Extend", func(ctx context.Context) error { return o.extend(ctx, longTTL) })
	if err != nil {
		wantUnknown(t, "Extend of a held lock, its reply lost", err)
	}
	err = call("Release", o.release)
	if err != nil {
		wantUnknown(t, "Release of a held lock, its reply lost", err)
	}
	settled(t, bs[0], "k")
	b, ok := bs[0].(stepper)
	if !ok {
		return
	}
	step := func(what string, keys []string, c backend.Choice) {
		t.Helper()
		settled(t, b, keys...)
		reqs, sent := requests(keys, longTTL), time.Now()
		var grants []*backend.Grant
		err := call(what, func(ctx context.Context) (err error) {
			grants, err = b.AcquireMany(ctx, reqs, c)
			return err
		})
		if err != nil {
			wantKind(t, what+" of free locks, its reply lost", err, locker.ErrUnavailable)
			grants = nil
		}
		for i, g := range grants {
			if g != nil {
				held(b, reqs[i], sent, *g).must(t)
			}
		}
		settled(t, bs[1], keys...)
	}
	step("AcquireMany", oneSlot(), backend.Choice{})
	if backend.Of(b).Some {
		step("AcquireMany of some", places(), backend.Choice{N: 2, Gates: []string{gate}})
	}
}

func closeIsFinal(t testing.TB, h Harness) {
	bs, s := backends(t, h, 1)
	closed := s.Open()
	closer, ok := closed.(io.Closer)
	if !ok {
		t.Skip("the Backend has no Close")
	}
	grab(t, closed, "k", longTTL).must(t)
	if err := within(t, "Close", hangLimit, closer.Close); err != nil {
		t.Errorf("Close: expected no error, seen %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	err := within(t, "Acquire after Close", 0, func() error {
		_, err := acquire(ctx, closed, "k", longTTL)
		return err
	})
	if !errors.Is(err, locker.ErrClosed) && !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("Acquire after Close: expected an error that matches ErrClosed or ErrUnavailable, seen %v", err)
	}
	grab(t, bs[0], "k", longTTL).must(t)
}
