package filelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golocker/locker/backends/filelock"
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
		time, file string // the namespace and the file of the id; empty: there is none
		want       string
	}{
		"the kernel's":                {initial, kernels, id},
		"in a time namespace":         {"time:[1]", kernels, ""},
		"a kernel that shows none":    {"", kernels, ""}, // as in gVisor
		"another one covers the file": {initial, "covered", ""},
		"random ids cover the file":   {initial, "/proc/sys/kernel/random/uuid", ""},
		"there is no file":            {initial, "", ""},
		"the file is a directory":     {initial, "/proc", ""},
	} {
		proc := t.TempDir()
		ns, random := filepath.Join(proc, "self/ns"), filepath.Join(proc, "sys/kernel/random")
		err := errors.Join(os.MkdirAll(ns, 0o700), os.MkdirAll(random, 0o700))
		if c.time != "" {
			err = errors.Join(err, os.Symlink(c.time, filepath.Join(ns, "time")))
		}
		err = errors.Join(err, os.Symlink("pid:[1]", filepath.Join(ns, "pid")))
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
		filelock.SetProc(t, proc)
		if got := filelock.BootID(); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// A process that is restored from a checkpoint is in a time namespace, whose clock is that of the checkpoint.
func TestProcessIsRestored(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "locks"))
	defer s.Close()
	own, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if id, now := s.Clock(); err != nil || id != strings.TrimSpace(string(own)) || now <= 0 {
		t.Errorf("the id is %q, at %v; want %s, %v", id, now, own, err)
	}
	ns := filepath.Join(t.TempDir(), "self/ns")
	if err := errors.Join(os.MkdirAll(ns, 0o700), os.Symlink("time:[1]", filepath.Join(ns, "time"))); err != nil {
		t.Fatal(err)
	}
	filelock.SetProc(t, filepath.Join(ns, "../.."))
	if id, _ := s.Clock(); id != "" {
		t.Errorf("the id is %q afterwards", id)
	}
}
