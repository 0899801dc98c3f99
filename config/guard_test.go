package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
)

// New servers rest. After Bootstrap they grant locks at once, with the longest TTL that the guard allows.
func TestGuard(t *testing.T) {
	a, b, c := redistest.Start(t), redistest.Start(t), redistest.Start(t)
	for _, url := range []string{
		"redis://" + a.Addr() + "?guard=30s&prefix=one:",
		"redlock://" + a.Addr() + "," + b.Addr() + "," + c.Addr() + "?guard=30s&prefix=three:&budget=20s",
	} {
		cfg, err := config.Parse(url)
		require.NoError(t, err)
		l, err := cfg.Open(t.Context())
		require.NoError(t, err)
		closeLater(t, l)
		_, err = l.TryLock(t.Context(), "k")
		require.ErrorIs(t, err, locker.ErrUnavailable)
		require.ErrorContains(t, err, "rests for another")

		d, err := cfg.Deployment(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 30*time.Second, d.Guard)
		require.NoError(t, d.Bootstrap(t.Context()))
		require.NoError(t, d.Close())
		steady.Unlock(t, steady.Lock(t, l, "k", locker.TTL(30*time.Second)))
		_, err = l.TryLock(t.Context(), "k", locker.TTL(31*time.Second))
		require.ErrorIs(t, err, locker.ErrInvalid)
	}
}

func TestBootstrapNeedsAGuard(t *testing.T) {
	for _, url := range []string{"redis://h", "redlock://h,i,j", "memory:"} {
		cfg, err := config.Parse(url)
		require.NoError(t, err)
		d, err := cfg.Deployment(t.Context())
		require.NoError(t, err)
		assert.ErrorIs(t, d.Bootstrap(t.Context()), locker.ErrInvalid)
		require.NoError(t, d.Close())
	}
}
