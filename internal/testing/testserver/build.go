//go:build unix

package testserver

import (
	"crypto/sha256"
	"encoding/hex"
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
	cache, err := os.UserCacheDir()
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	version := sha256.Sum256(append(sums, pkg+runtime.Version()...))
	dir := filepath.Join(cache, "locker-servers", hex.EncodeToString(version[:8]))
	path := filepath.Join(dir, "server")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // programs may be run by other users
		tb.Fatalf("testserver: %v", err)
	}
	lock, err := os.Create(filepath.Join(dir, "lock")) // one process builds, and the others wait
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		return path
	}
	build := exec.Command("go", "build", "-C", module, "-o", path+".new", pkg)
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("testserver: this test needs %s, which go build takes from the Go module proxy: %v\n%s", pkg, err, out)
	}
	if err := os.Rename(path+".new", path); err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	return path
}
