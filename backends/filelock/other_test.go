//go:build !linux && !darwin

package filelock_test

import (
	"strings"
	"testing"

	"github.com/golocker/locker/backends/filelock"
)

func TestNotSupported(t *testing.T) {
	if _, err := filelock.OpenStore(t.TempDir()); err == nil || !strings.Contains(err.Error(), "not supported on") {
		t.Error(err)
	}
}
