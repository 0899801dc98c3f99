package flaky

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
)

func TestPasses(t *testing.T) {}

// first reports whether a file does not exist, and creates it.
func first(what string) bool {
	if _, err := os.Stat(os.Getenv("MARK") + what); err == nil {
		return false
	}
	_ = os.WriteFile(os.Getenv("MARK")+what, nil, 0o600)
	return true
}

func TestFailsOnce(t *testing.T) {
	if first("") {
		t.Run("sub", func(t *testing.T) { t.Error("the first time") })
		return
	}
	t.Log("the file is there")
}

// TestSubtestFailsOnce takes very long if all of it is run ten times.
func TestSubtestFailsOnce(t *testing.T) {
	t.Run("long", func(t *testing.T) {
		if !first("") && !first("again") {
			time.Sleep(time.Hour)
		}
	})
	t.Run("with (others)", func(t *testing.T) {
		t.Run("passes", func(t *testing.T) {})
		t.Run("fails once", func(t *testing.T) {
			if first("sub") {
				t.Error("the first time")
			}
		})
	})
}

// TestSubtestFailsWithOthers fails in a subtest that passes alone.
func TestSubtestFailsWithOthers(t *testing.T) {
	alone := true
	t.Run("one", func(t *testing.T) { alone = false })
	t.Run("other", func(t *testing.T) {
		if !alone {
			t.Error("not alone")
		}
	})
}

// TestNewNames fails in a subtest that there is only once.
func TestNewNames(t *testing.T) {
	t.Run(fmt.Sprint(os.Getpid()), func(t *testing.T) { t.Error("every time") })
}

// TestRacesOnce fails once as a test does in which the race detector finds something.
func TestRacesOnce(t *testing.T) {
	if first("") {
		t.Error("race detected during execution of test")
	}
}

// TestReportsOnce fails once with the report of a race whose test is not known.
func TestReportsOnce(t *testing.T) {
	if first("") {
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
