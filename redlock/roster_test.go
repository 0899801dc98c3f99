package redlock

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/simnode"
	"github.com/golocker/locker/internal/virtual"
)

// Answers may come after Close has begun to wait for checks: they must not begin another, on drivers that are being closed.
func TestNobodyIsCheckedAfterClose(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		asked := 0
		d := simnode.New().Driver(func(_ context.Context, _ []drivers.Command, do func() []drivers.Reply) ([]drivers.Reply, error) {
			asked++
			return do(), nil
		})
		r := newRoster([]drivers.Driver{d}, []string{"a"}, slog.New(slog.DiscardHandler))
		r.close()
		r.answered(0)
		synctest.Wait()
		if asked != 0 {
			t.Errorf("asked %d times, want 0", asked)
		}
	})
}
