package redistest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// ServerEnv is the name of the variable that chooses the server of the tests. Its value is a path, or the name of a
// server that scripts/servers installs, such as "valkey-8.1". If it is unset or empty, the tests use the redis-server
// in PATH.
const ServerEnv = "LOCKER_TEST_SERVER"

// Binary returns the path of the server that the tests run on. If there is none, the test fails and says how to install
// it. The test is not skipped, because a skipped test would be mistaken for a passed one.
func Binary(tb testing.TB) string {
	tb.Helper()
	name := os.Getenv(ServerEnv)
	if name == "" {
		binary, err := exec.LookPath("redis-server")
		if err != nil {
			tb.Fatalf("this test needs a real redis-server, and none is in PATH: install one "+
				"(apt-get install -y --no-install-recommends redis-server), run the tests by `make test`, which does so, "+
				"or name another server in %s", ServerEnv)
		}
		return binary
	}
	binary, advice := name, "no program is there"
	if !strings.Contains(name, "/") {
		cache, err := os.UserCacheDir()
		if err != nil {
			tb.Fatalf("redistest: %s=%s: %v", ServerEnv, name, err)
		}
		// This is where scripts/servers installs servers.
		binary, advice = filepath.Join(cache, "locker-servers", name, "redis-server"),
			"it is not installed: run scripts/servers "+name
	}
	// The path must be absolute, because servers run in directories of their own.
	binary, err := filepath.Abs(binary)
	if err == nil {
		_, err = exec.LookPath(binary)
	}
	if err != nil {
		tb.Fatalf("redistest: %s=%s: %s (%v)", ServerEnv, name, advice, err)
	}
	return binary
}

// Path returns a PATH in which redis-server is the server that the tests run on, for programs that start one
// themselves.
func Path(tb testing.TB) string {
	tb.Helper()
	if os.Getenv(ServerEnv) == "" {
		return os.Getenv("PATH")
	}
	dir := tb.TempDir()
	if err := os.Symlink(Binary(tb), filepath.Join(dir, "redis-server")); err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	return dir + string(filepath.ListSeparator) + os.Getenv("PATH")
}

var versions sync.Map // by path

// Version returns a server's version, such as "Redis server 7.0.15", or an error text.
func Version(binary string) string {
	if v, ok := versions.Load(binary); ok {
		return v.(string)
	}
	out, err := exec.Command(binary, "--version").Output()
	v, _, _ := strings.Cut(strings.Replace(string(out), " v=", " ", 1), " sha=")
	if err != nil {
		v = err.Error()
	}
	versions.Store(binary, v)
	return v
}

var named sync.Map // tests that will name their server if they fail

// nameOnFailure makes a test that fails print, once, which server it ran on.
func nameOnFailure(tb testing.TB, binary string) {
	if _, again := named.LoadOrStore(tb, true); again {
		return
	}
	tb.Cleanup(func() {
		named.Delete(tb)
		if tb.Failed() {
			tb.Logf("this was on %s (%s)", Version(binary), binary)
		}
	})
}
