package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
)

// slowDriver needs some time for each call, and loses all progress when the context of a call ends.
type slowDriver struct {
	drivers.Driver
	needs time.Duration
}

func (d slowDriver) Do(ctx context.Context, _ ...drivers.Command) ([]drivers.Reply, error) {
	select {
	case <-time.After(d.needs):
		return []drivers.Reply{"PONG"}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A driver on a busy machine is slow and nevertheless recovers.
func TestEventuallyHasPatienceWithASlowDriver(t *testing.T) {
	for needs, want := range map[time.Duration]bool{
		900 * time.Millisecond: true, 1500 * time.Millisecond: true, recovery / 2: true, 2 * recovery: false,
	} {
		t.Run(needs.String(), func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				trial := newTrial(t)
				trial.run(func() { eventually(trial, slowDriver{needs: needs}, drivers.Command{"PING"}) })
				assert.Equal(t, want, !trial.Failed(), trial.texts())
			})
		})
	}
}
