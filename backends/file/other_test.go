//go:build !linux && !darwin

package file_test

import (
	"strings"
	"testing"

	"github.com/golocker/locker/backends/file"
)

func TestNotSupported(t *testing.T) {
	if _, err := file.Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "not supported on") {
		t.Error(err)
	}
}
