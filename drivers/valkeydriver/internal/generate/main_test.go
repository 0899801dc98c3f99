package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A change of the driver of rueidis reaches users of valkey-go when their driver is generated again.
func TestTheDriverIsThatOfRueidis(t *testing.T) {
	want, err := generate()
	require.NoError(t, err)
	require.Contains(t, want, "valkey.go")
	got, err := generated()
	require.NoError(t, err)
	assert.Equal(t, want, got, "run: go generate -C drivers/valkeydriver ./...")
}
