//go:build unix

package cli

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/inspect"
)

// TestHolderIsNamed: by its label in text and JSON, which cannot change the terminal.
func TestHolderIsNamed(t *testing.T) {
	for label, want := range map[string]string{
		"web-7:4211": "held by web-7:4211 for 28 s unless renewed",
		"":           "held for 28 s unless renewed",
		"\x1b[2J":    `held by "\x1b[2J" for 28 s unless renewed`,
	} {
		var out bytes.Buffer
		a := &app{stdout: &out}
		node := inspect.Inspection{State: inspect.Held, Owner: "OkdgU1wA", Label: label, Remaining: 28 * time.Second}
		seen := node
		seen.Nodes = []inspect.Node{{Node: "a", Inspection: node}}
		a.printInspection("k", seen)
		assert.Contains(t, out.String(), "state    "+want+"\nowner    OkdgU1wA…\n")
		assert.NotContains(t, out.String(), "\x1b[2J")
		assert.Contains(t, (&view{app: a, key: "k", last: seen}).line(time.Now()), `"k" `+want+", owner OkdgU1wA…")

		text, err := json.Marshal(lockOf("k", seen))
		require.NoError(t, err)
		j := decode[lockJSON](t, string(text))
		assert.Equal(t, label, j.Label)
		assert.Equal(t, label, j.Nodes[0].Label)
	}
}

func TestReleaseNamesTheHolder(t *testing.T) {
	for label, want := range map[string]string{
		"web-7:4211": "released \"k\", taken from web-7:4211 (OkdgU1wA…), who had it for 2s\n",
		"":           "released \"k\", taken from OkdgU1wA…, who had it for 2s\n",
	} {
		var out bytes.Buffer
		a := &app{stdout: &out}
		seen := inspect.Inspection{State: inspect.Held, Owner: "OkdgU1wA", Label: label, Held: 2 * time.Second}
		require.NoError(t, a.released("k", seen, nil))
		assert.Equal(t, want, out.String())
	}
}
