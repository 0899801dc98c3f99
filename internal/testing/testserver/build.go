//go:build unix

package testserver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// Build returns the path of the program of a main package, in the version that the module internal/testing/stores
// names. It builds the program if there is none of this version. It does so without the race detector, which would make
// a server slow. The program is no part of the test's process, so that a test can stop and kill it. If it cannot be
// built, the test fails.
func Build(tb testing.TB, pkg string) string {
	tb.Helper()
	_, file, _, _ := runtime.Caller(0)
	module := filepath.Join(filepath.Dir(filepath.Dir(file)), "stores")
	sums, err := os.ReadFile(filepath.Join(module, "go.sum"))
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	version := sha256.Sum256(append(sums, pkg+runtime.Version()...))
	return Cached(tb, hex.EncodeToString(version[:8])+"/server", func(path string) error {
		build := exec.Command("go", "build", "-C", module, "-o", path, pkg)
		build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("this test needs %s, which go build takes from the Go module proxy: %w\n%s", pkg, err, out)
		}
		return nil
	})
}

// Cached returns the path of what make makes, a file or a directory, in the cache of this machine's user. It is made
// if there is none of this name, which is that of a directory and of what is in it. If it cannot be made, the test
// fails.
func Cached(tb testing.TB, name string, make func(path string) error) string {
	tb.Helper()
	path, err := cached(name, make)
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	return path
}

func cached(name string, make func(path string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "locker-servers", name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // programs may be run by other users
		return "", err
	}
	lock, err := os.Create(filepath.Join(filepath.Dir(path), "lock")) // one process makes it, and the others wait
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := errors.Join(os.RemoveAll(path+".new"), make(path+".new")); err != nil {
		return "", err
	}
	return path, os.Rename(path+".new", path)
}
