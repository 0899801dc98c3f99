//go:build unix

package natstest

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
)

// module is the directory of the module that names the version of the server.
func module() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(filepath.Dir(file)), "stores")
}

// binary builds nats-server from its Go module, once for each version, and returns the path of the program. It is built
// without the race detector, which makes it slow, and is not part of the test's process, so that it can be killed.
var binary = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sums, err := os.ReadFile(filepath.Join(module(), "go.sum"))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(sums, runtime.Version()...))
	dir := filepath.Join(cache, "locker-servers", "nats-"+hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "nats-server")
	lock, err := os.Create(filepath.Join(dir, "lock")) // one process builds, the others wait
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
	build := exec.Command("go", "build", "-o", path+".new", "github.com/nats-io/nats-server/v2")
	build.Dir = module()
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	if out, err := build.CombinedOutput(); err != nil {
		return "", &exec.Error{Name: "go build nats-server: " + string(out), Err: err}
	}
	return path, os.Rename(path+".new", path)
})
