package config_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
)

// The time-outs of the clients leave room for that of the replicas.
func TestReplicas(t *testing.T) {
	s := redistest.Start(t)
	for _, name := range []string{"goredis", "redigo", "rueidis"} {
		l := open(t, "redis://"+s.Addr()+"?driver="+name+"&replicas=2&replicas_timeout=900ms&timeout=500ms")
		var e *locker.NotReplicatedError
		var start time.Time
		require.Eventually(t, func() bool { // a stall may be longer than the time-outs
			start = time.Now()
			_, err := l.TryLock(t.Context(), "k")
			return errors.As(err, &e)
		}, time.Minute, time.Millisecond, name)
		assert.Equal(t, locker.NotReplicatedError{Got: 0, Want: 2}, *e)
		assert.GreaterOrEqual(t, time.Since(start), 900*time.Millisecond)
	}
}

// clustered is a driver for several servers.
type clustered struct{ drivers.Driver }

func (clustered) Cluster()     {}
func (clustered) Close() error { return nil }

func init() {
	drivers.Register("xclustered", func(context.Context, drivers.Config) (drivers.Driver, error) {
		return clustered{}, nil
	})
}

// Behind a cluster, replicas are refused when the locks are opened.
func TestReplicasOfACluster(t *testing.T) {
	_, err := config.Open(t.Context(), "redis://h?driver=xclustered&replicas=1")
	require.ErrorContains(t, err, "WAIT is not supported behind a cluster")
	open(t, "redis://h?driver=xclustered")
}
