package filelock

import "testing"

// SetProc replaces /proc in a test.
func SetProc(t testing.TB, path string) {
	was := proc
	t.Cleanup(func() { proc = was })
	proc = path
}

var BootID = bootID

// Changes reads what the kernel tells.
var Changes = changes
