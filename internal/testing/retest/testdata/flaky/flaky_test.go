package flaky

import (
	"os"
	"testing"
)

func TestPasses(t *testing.T) {}

// TestFailsOnce fails if a file does not exist, and creates it.
func TestFailsOnce(t *testing.T) {
	if _, err := os.Stat(os.Getenv("MARK")); err != nil {
		_ = os.WriteFile(os.Getenv("MARK"), nil, 0o600)
		t.Run("sub", func(t *testing.T) { t.Error("the first time") })
	}
}

func TestFails(t *testing.T) { t.Error("every time") }

func TestPanics(t *testing.T) { panic("no accident") }
