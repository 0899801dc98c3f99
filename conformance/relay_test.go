package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A relay that is down must not lose its address to another one.
func TestRelaysHaveDifferentAddresses(t *testing.T) {
	seen := map[string]bool{}
	for range 2000 {
		addr := freeAddr()
		require.False(t, seen[addr], addr)
		seen[addr] = true
	}
}
