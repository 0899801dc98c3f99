package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
)

// TestReleaseAsks checks that release shows the owner on a terminal, and takes the lock from this owner only, after a
// confirmation.
func TestReleaseAsks(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	lease := heldBy(t, url, "k")
	s := newSession(t, url, `
		for i in 1 2; do "$LOCKER" release k; echo "code $?"; done
		"$LOCKER" release k </dev/null; echo "code $?"`)
	s.shows(t, lease.Token()[:8]+"…")
	s.shows(t, "[y/N]")
	s.types(t, "\n")
	s.shows(t, "nothing was released")
	s.shows(t, "code 1")
	require.NoError(t, lease.Extend(t.Context()))
	s.types(t, "y\n")
	s.shows(t, `released "k", taken from `)
	s.shows(t, "code 0")
	assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
	s.shows(t, "nothing to release")
}

// TestWatchOnATerminal checks that watch updates one line.
func TestWatchOnATerminal(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	s := newSession(t, url, `"$LOCKER" watch k; echo "code $?"`)
	s.shows(t, `"k" free`)
	lease := heldBy(t, url, "k")
	s.shows(t, "unless renewed, owner "+lease.Token()[:8])
	s.types(t, "\x03")
	s.shows(t, "code 0")

	down := newSession(t, "redis://127.0.0.1:1", `"$LOCKER" watch k`)
	down.shows(t, `"k" unknown: 127.0.0.1:1: dial tcp`) // the reason comes before the end of the line
	down.types(t, "\x03")
}
