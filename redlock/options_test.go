package redlock_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/redlock"
)

// down is a server that refuses connections.
type down struct{}

func (down) Do(context.Context, ...drivers.Command) ([]drivers.Reply, error) {
	return nil, drivers.NotSent(errors.New("connection refused"))
}

func (down) Close() error { return nil }

func TestABudgetThatCannotBeKeptIsRefused(t *testing.T) {
	t.Parallel()
	for budget, valid := range map[time.Duration]bool{
		-time.Second: false, -1: false, 1: false, 3: false, redlock.MinBudget - 1: false,
		0: true, redlock.MinBudget: true, time.Hour: true,
	} {
		c, err := redlock.New([]drivers.Driver{down{}, down{}, down{}}, redlock.Budget(budget),
			redlock.Logger(slog.New(slog.DiscardHandler)))
		if !valid {
			if !errors.Is(err, locker.ErrInvalid) {
				t.Errorf("Budget(%v): %v, want an error that matches ErrInvalid", budget, err)
			}
			if c == nil {
				continue
			}
		} else if err != nil {
			t.Errorf("Budget(%v): %v", budget, err)
			continue
		}
		if _, err := c.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrNoQuorum) {
			t.Errorf("TryLock with Budget(%v): %v", budget, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
