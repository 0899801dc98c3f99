package file_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golocker/locker/backends/file"
)

// A process whose clock or whose boot id may be another one than those of other processes has none.
func TestBootID(t *testing.T) {
	const initial, kernels = "time:[4026531834]", "/proc/sys/kernel/random/boot_id"
	own, err := os.ReadFile(kernels)
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(string(own))
	for name, c := range map[string]struct {
		time, pid, file string // the namespaces and the file of the id; empty: there is none
		want            string
	}{
		"the kernel's":                 {initial, "pid:[1]", kernels, id},
		"in a time namespace":          {"time:[1]", "pid:[1]", kernels, ""},
		"a kernel that has none":       {"", "pid:[1]", kernels, id},
		"namespaces are not shown":     {"", "", kernels, ""},
		"another one covers the file":  {initial, "pid:[1]", "covered", ""},
		"the file may not be read":     {initial, "pid:[1]", "", ""},
		"the file is a directory":      {initial, "pid:[1]", "/proc", ""},
		"a process in a PID namespace": {initial, "pid:[2]", kernels, id},
	} {
		proc := t.TempDir()
		ns, random := filepath.Join(proc, "self/ns"), filepath.Join(proc, "sys/kernel/random")
		err := errors.Join(os.MkdirAll(ns, 0o700), os.MkdirAll(random, 0o700))
		if c.time != "" {
			err = errors.Join(err, os.Symlink(c.time, filepath.Join(ns, "time")))
		}
		if c.pid != "" {
			err = errors.Join(err, os.Symlink(c.pid, filepath.Join(ns, "pid")))
		}
		switch at := filepath.Join(random, "boot_id"); c.file {
		case "":
		case "covered":
			err = errors.Join(err, os.WriteFile(at, own, 0o600))
		default:
			err = errors.Join(err, os.Symlink(c.file, at))
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := file.BootIDIn(proc); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
