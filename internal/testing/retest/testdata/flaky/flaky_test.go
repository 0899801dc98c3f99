package flaky

import (
	"fmt"
	"os"
	"syscall"
	"testing"
)

func TestPasses(t *testing.T) {}

// first reports whether a file does not exist, and creates it.
func first() bool {
	if _, err := os.Stat(os.Getenv("MARK")); err == nil {
		return false
	}
	_ = os.WriteFile(os.Getenv("MARK"), nil, 0o600)
	return true
}

func TestFailsOnce(t *testing.T) {
	if first() {
		t.Run("sub", func(t *testing.T) { t.Error("the first time") })
		return
	}
	t.Log("the file is there")
}

// TestRacesOnce fails once as a test does in which the race detector finds something.
func TestRacesOnce(t *testing.T) {
	if first() {
		t.Error("race detected during execution of test")
	}
}

// TestReportsOnce fails once with the report of a race whose test is not known.
func TestReportsOnce(t *testing.T) {
	if first() {
		fmt.Println("WARNING: DATA RACE")
		t.Fail()
	}
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

// TestDies ends the process as a crash does, without a line of a panic.
func TestDies(t *testing.T) {
	t.Log("its last words")
	os.Exit(3)
}
