//go:build linux || darwin

package filelock_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// asChild is a variable that makes the test binary one of the programs of processes_test.go.
const asChild = "TEST_AS_CHILD"

func TestMain(m *testing.M) {
	if program := programs[os.Getenv(asChild)]; program != nil {
		program(os.Args[1:])
		return
	}
	goleak.VerifyTestMain(m)
}
