package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestJournal checks that the check at the end of the program finds faults.
func TestJournal(t *testing.T) {
	for name, tt := range map[string]struct {
		lines, want string
	}{
		"turns": {"start 1 7/1 t; end 1 7/1 t; start 5 8/1 t; end 5 8/1 t", ""},
		"empty": {"", ""},
		"overlap": {"start 1 7/1 t; start 2 8/1 t; end 1 7/1 t; end 2 8/1 t",
			":2: 8/1 started while 7/1 had the lock"},
		"same token":       {"start 1 7/1 t; end 1 7/1 t; start 1 8/1 t", ":3: token 1 came after 1"},
		"older token":      {"start 2 7/1 t; end 2 7/1 t; start 1 8/1 t", ":3: token 1 came after 2"},
		"somebody else":    {"start 1 7/1 t; end 1 8/1 t", `:2: 8/1 ended a turn of "7/1"`},
		"another token":    {"start 1 7/1 t; end 2 7/1 t", ":2: 7/1 ended a turn"},
		"end without turn": {"end 1 7/1 t", ":1: 7/1 ended a turn"},
		"no end":           {"start 1 7/1 t", "7/1 never ended its turn"},
		"something else":   {"hello", ":1: not a line of a journal"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal")
			require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(tt.lines, "; ", "\n")), 0o600))
			j, err := openJournal(path)
			require.NoError(t, err)
			defer j.Close()
			turns, err := j.check()
			if tt.want == "" {
				assert.NoError(t, err)
				assert.Equal(t, strings.Count(tt.lines, "end"), turns)
			} else {
				assert.ErrorContains(t, err, tt.want)
			}
		})
	}
}
