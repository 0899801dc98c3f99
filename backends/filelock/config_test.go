//go:build linux || darwin

package filelock_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/filelock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/configtest"
)

// The same directory by URLs, in a file, in the environment and in code. A lock of one is held for the others.
func TestAllWays(t *testing.T) {
	t.Chdir(t.TempDir())
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(wd, "my locks?")
	escaped := strings.ReplaceAll(strings.ReplaceAll(dir, " ", "%20"), "?", "%3F")
	own := []locker.Locker{client(t, dir)}
	for _, url := range []string{
		"file://" + escaped + "/?poll=20ms", "file:my%20locks%3F?ttl=1s", "FILE:./my%20locks%3F",
	} {
		c, err := config.Parse(url)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		again, err := config.Parse(c.String())
		if err != nil || again.String() != c.String() ||
			*again.Sections["file"].(*filelock.Config) != *c.Sections["file"].(*filelock.Config) {
			t.Errorf("%s is %s, and that is %v, %v", url, c, again, err)
		}
		l, err := c.Open(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		t.Cleanup(func() { _ = l.Close() })
		own = append(own, l)
	}
	configtest.Ways{
		URL:  "file:" + escaped,
		YAML: "backend: file\nttl: 5s\nfile: {dir: '" + dir + "', poll: 20ms}\n",
		Env:  []string{"LOCKER_BACKEND=file", "LOCKER_FILE_DIR=" + dir},
	}.SameLocks(t, own...)
}

func TestMistakes(t *testing.T) {
	configtest.Mistakes(t, map[string]string{
		"file:":               "dir: missing: write file:/var/lib/myapp/locks",
		"file://":             "dir: missing",
		"file://locks/a":      "none before a relative one",
		"file:~/locks":        "only a shell knows what ~ is",
		"file:/a?poll=-1s":    "poll: must be more than 0",
		"file:/a?pol=1s":      "did you mean poll?",
		"file:/a?dir=/b":      "unknown parameter",
		"file:/a%":            "%25",
		"file://user:pass@/a": "the backend file has no",
		"file+redigo:/a":      "has no driver",
	})
	_, err := config.Open(t.Context(), "file:"+os.Args[0])
	if err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a file: %v", err)
	}
}
