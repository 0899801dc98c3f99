package flaky

import (
	"os"
	"syscall"
	"testing"
)

func TestPasses(t *testing.T) {}

// TestFailsOnce fails if a file does not exist, and creates it.
func TestFailsOnce(t *testing.T) {
	if _, err := os.Stat(os.Getenv("MARK")); err != nil {
		_ = os.WriteFile(os.Getenv("MARK"), nil, 0o600)
		t.Run("sub", func(t *testing.T) { t.Error("the first time") })
		return
	}
	t.Log("the file is there")
}

// TestIsAlone fails while others may run beside it: while one may lock the directory of retest as it does at first.
func TestIsAlone(t *testing.T) {
	retest, err := os.Open("../..")
	if err != nil {
		t.Fatal(err)
	}
	defer retest.Close()
	if syscall.Flock(int(retest.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil {
		t.Error("beside others")
	}
}

func TestFails(t *testing.T) { t.Error("every time") }

func TestPanics(t *testing.T) { panic("no accident") }
