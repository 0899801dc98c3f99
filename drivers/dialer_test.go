package drivers

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a Dialer does with sentinels is tested beside internal/sentinel.
func dialerOfAServer(t *testing.T) (d *Dialer, addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	d = NewDialer(Config{Network: "tcp", Addr: l.Addr().String()})
	t.Cleanup(d.Close)
	return d, l.Addr().String()
}

func TestDialerForgetsConnectionsThatAreClosed(t *testing.T) {
	d, _ := dialerOfAServer(t)
	for range 5 {
		conn, err := d.Dial(t.Context())
		require.NoError(t, err)
		_ = conn.Close()
	}
	conn, err := d.Dial(t.Context())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	d.mu.Lock()
	defer d.mu.Unlock()
	assert.Len(t, d.conns, 1)
}

func TestDialerOfAStandaloneServer(t *testing.T) {
	d, addr := dialerOfAServer(t)
	conn, err := d.Dial(t.Context())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	assert.Equal(t, addr, conn.RemoteAddr().String())
}
