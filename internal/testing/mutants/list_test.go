package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The list does not rot: what it replaces is there, once.
func TestEveryMutantApplies(t *testing.T) {
	for _, m := range mutants {
		for _, p := range m.patches {
			text, err := os.ReadFile(filepath.Join("../../..", p.file))
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(text, []byte(p.before)); n != 1 {
				t.Errorf("%s: %s has %q %d times, not once", m.name, p.file, p.before, n)
			}
		}
		if len(m.killers) == 0 {
			t.Errorf("%s: nothing is to notice it", m.name)
		}
	}
}
