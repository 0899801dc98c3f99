package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/lookat"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
)

// The logger of a configuration takes the warnings of the backend, those about the servers, and what log switches on.
func TestLogger(t *testing.T) {
	a, b := redistest.Start(t), redistest.Start(t)
	for url, want := range map[string]string{
		"redis://" + a.Addr():                    "",
		"redlock://" + a.Addr() + "," + b.Addr(): "fewer than three nodes",
	} {
		c, err := config.Parse(url + "?log=debug")
		require.NoError(t, err)
		log := lookat.NewLog()
		c.Logger = log.Logger
		l, err := c.Open(t.Context())
		require.NoError(t, err)
		assert.Eventually(t, func() bool { return strings.Contains(log.String(), "append-only file is off") },
			20*time.Second, 5*time.Millisecond)
		steady.Unlock(t, steady.Lock(t, l, "k"))
		assert.Contains(t, log.String(), want)
		assert.Contains(t, log.String(), `msg="lock acquired"`)
		require.NoError(t, l.Close())
		assert.Equal(t, url+"?log=debug", c.String(), "a logger is no setting")
	}
}
