package recordstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each fault does what it says, to a request that creates a record.
func TestFaults(t *testing.T) {
	const long = 10 * time.Second
	for name, c := range map[string]struct {
		fault    recordstore.Fault
		executed time.Duration // negative: never
		answered time.Duration
		err      error
	}{
		"none":          {recordstore.Fault{}, time.Second, 2 * time.Second, nil},
		"slow request":  {recordstore.Fault{Before: long}, long + time.Second, 5 * time.Second, context.DeadlineExceeded},
		"slow reply":    {recordstore.Fault{After: long}, time.Second, 5 * time.Second, context.DeadlineExceeded},
		"lost reply":    {recordstore.Fault{Lost: true}, time.Second, 2 * time.Second, errAny},
		"twice":         {recordstore.Fault{Twice: true}, time.Second, 2 * time.Second, record.ErrConflict},
		"refused":       {recordstore.Fault{Refused: true}, -1, 2 * time.Second, errAny},
		"false refusal": {recordstore.Fault{Doubted: true}, -1, 2 * time.Second, record.ErrConflict},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := recordstore.New()
				t.Cleanup(s.Wait)
				s.Latency = time.Second
				s.Inject(func(recordstore.Request) recordstore.Fault { return c.fault })
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				_, err := s.Create(ctx, "k", []byte("text"))
				if took := time.Since(start); took != c.answered {
					t.Errorf("the answer came after %v, want %v", took, c.answered)
				}
				wrong := !errors.Is(err, c.err)
				if c.err == errAny {
					wrong = err == nil || errors.Is(err, record.ErrConflict)
				}
				if wrong {
					t.Errorf("got the error %v, want %v", err, c.err)
				}
				time.Sleep(time.Until(start.Add(c.executed + 1)))
				if got := s.Text("k"); (got == "text") != (c.executed >= 0) {
					t.Errorf("after %v there is %q", time.Since(start), got)
				}
			})
		})
	}
}

// errAny stands for every error but a conflict.
var errAny = errors.New("any")

// A store that hangs executes afterwards what has arrived. One that is down does not.
func TestHangAndDown(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := recordstore.New()
		t.Cleanup(s.Wait)
		create := func(name string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := s.Create(ctx, name, []byte("text"))
			return err
		}
		mend := s.Hang()
		if err := create("hung"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		mend()
		s.Wait()
		up := s.Down()
		if err := create("down"); err == nil || errors.Is(err, record.ErrConflict) {
			t.Error(err)
		}
		up()
		if hung, down := s.Text("hung"), s.Text("down"); hung != "text" || down != "" {
			t.Errorf("got %q and %q", hung, down)
		}
	})
}
