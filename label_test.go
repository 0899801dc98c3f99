package locker_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/memory"
)

func TestHeldErrorText(t *testing.T) {
	for want, e := range map[string]locker.HeldError{
		"held by another owner":                            {},
		"held by another owner for 1 ms unless renewed":    {Remaining: time.Microsecond},
		"held by another owner for 250 ms unless renewed":  {Remaining: 250400 * time.Microsecond},
		"held by another owner for 9.9 s unless renewed":   {Remaining: 9876 * time.Millisecond},
		"held by web-7:4211 for 28 s unless renewed":       {Remaining: 28 * time.Second, Label: "web-7:4211"},
		"held by web-7:4211 for 29 s unless renewed":       {Remaining: 28999 * time.Millisecond, Label: "web-7:4211"},
		"held by web-7:4211 for 1m0s unless renewed":       {Remaining: time.Minute, Label: "web-7:4211"},
		"held by web-7:4211":                               {Label: "web-7:4211"},
		`held by "the nightly job" for 2 s unless renewed`: {Remaining: 2 * time.Second, Label: "the nightly job"},
		`held by "\x1b[2J"`:                                {Label: "\x1b[2J"},
	} {
		if got := e.Error(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if !errors.Is(&e, locker.ErrHeld) {
			t.Errorf("%v does not match ErrHeld", &e)
		}
	}
}

// labelOf returns the label of the holder, as a caller that does not wait gets it.
func labelOf(t *testing.T, l locker.Locker) string {
	t.Helper()
	_, err := l.TryLock(t.Context(), "k")
	var held *locker.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("%v, want a HeldError", err)
	}
	return held.Label
}

func TestWhichLabelWins(t *testing.T) {
	c := memory.New()
	defer c.Close()
	defaults := locker.Wrap(c, locker.Defaults(locker.Label("default")))
	host, _ := os.Hostname()
	process := ":" + strconv.Itoa(os.Getpid())
	for _, tt := range []struct {
		l    locker.Locker
		opts []locker.Option
		want string
	}{
		{c, nil, host + process},
		{defaults, nil, "default"},
		{defaults, []locker.Option{locker.Label("of the call")}, "of the call"},
		{defaults, []locker.Option{locker.Label("")}, ""},
		{c, []locker.Option{locker.Label("")}, ""},
	} {
		lease, err := tt.l.Lock(t.Context(), "k", tt.opts...)
		if err != nil {
			t.Fatal(err)
		}
		seen := labelOf(t, c)
		if host, cut := strings.CutSuffix(tt.want, process); cut && len(host) > 40 {
			tt.want = seen // it is shortened; package label tests how
		}
		if seen != tt.want {
			t.Errorf("the label is %q, want %q", seen, tt.want)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Callers of one Client wait behind each other. They hear of the holder, too.
func TestAWaitingCallIsToldTheLabel(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		holder := mustLock(t, c, "k", locker.Label("first"))
		told := make(chan string, 2)
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{
			Waiting: func(w lockertrace.Waiting) { told <- w.Label },
		})
		results := make(chan error, 2)
		for range 2 {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			go func() {
				_, err := c.Lock(ctx, "k", locker.Label("another"))
				results <- err
			}()
			if label := <-told; label != "first" {
				t.Errorf("a waiting call was told the label %q", label)
			}
		}
		for range 2 {
			err := <-results
			wantErr(t, err, locker.ErrHeld, context.DeadlineExceeded)
			if want := "timed out after 1s: held by first for "; !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not contain %q", err, want)
			}
		}
		if err := holder.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
