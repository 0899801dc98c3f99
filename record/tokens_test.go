package record_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/record"
)

// Tokens follow the clock, so they are past a number when the clock is. RaiseFences waits a moment for that, and
// otherwise says when it will be so.
func TestRaiseFences(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const timeout = 5 * time.Second
		s := recordstore.New()
		b, other := backendOf(t, s), backendOf(t, s)
		for _, ahead := range []time.Duration{-time.Hour, 0, time.Microsecond, timeout - time.Microsecond} {
			start := time.Now()
			past := uint64(start.Add(ahead).UnixMicro())
			if err := b.RaiseFences(t.Context(), past); err != nil {
				t.Errorf("a number that is %v ahead of the clock: %v", ahead, err)
			}
			if took, want := time.Since(start), max(0, ahead+time.Microsecond); took != want {
				t.Errorf("a number that is %v ahead of the clock: it took %v, want %v", ahead, took, want)
			}
			g, err := other.Acquire(t.Context(), backend.Request{Key: ahead.String(), Token: "o", TTL: ttl})
			if err != nil || g.Fence <= past {
				t.Errorf("a number that is %v ahead of the clock, %d: the next token is %d, %v", ahead, past, g.Fence, err)
			}
		}

		now := time.Now()
		err := b.RaiseFences(t.Context(), uint64(now.Add(time.Hour).UnixMicro()))
		there := now.Add(time.Hour + time.Microsecond).UTC().Format(time.RFC3339Nano)
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "from "+there+" on") {
			t.Errorf("a number that is an hour ahead: %v, want one that says %s", err, there)
		}
		if err := b.RaiseFences(t.Context(), math.MaxUint64); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("the greatest number: %v", err)
		}
		if !time.Now().Equal(now) {
			t.Errorf("it waited for %v to fail", time.Since(now))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		past := uint64(now.Add(2 * time.Second).UnixMicro())
		if err := b.RaiseFences(ctx, past); !errors.Is(err, locker.ErrUnavailable) || time.Since(now) != time.Second {
			t.Errorf("a context that ends before the clock is there: %v after %v", err, time.Since(now))
		}
		closed := record.NewBackend(s)
		time.AfterFunc(time.Second/2, func() { _ = closed.Close() })
		for range 2 { // it is closed while the first call waits
			if err := closed.RaiseFences(t.Context(), past); !errors.Is(err, locker.ErrClosed) {
				t.Errorf("a Backend that is closed: %v", err)
			}
		}
	})
}
