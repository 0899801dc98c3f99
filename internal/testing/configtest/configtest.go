// Package configtest checks what the configuration of every store keeps to. The tests of a store give it their rows.
package configtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

// Secret is the password or the key in all configurations. No text says it.
const Secret = "hunter2"

// Mistakes checks that each configuration is refused before anything is opened, with an error that has the text beside
// it. A configuration is a URL, or variables of the environment with spaces between them.
func Mistakes(t *testing.T, mistakes map[string]string) {
	t.Helper()
	for text, want := range mistakes {
		var c *config.Config
		var err error
		if strings.HasPrefix(text, "LOCKER_") {
			c = new(config.Config)
			err = c.Overlay(strings.Fields(text))
		} else {
			c, err = config.Parse(text)
		}
		if err == nil {
			err = c.Validate()
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), Secret) {
			t.Errorf("%s: %v, expected %q and not the secret", text, err, want)
		}
	}
}

// Texts checks that each URL is valid, that its configuration has the text beside it, or itself if there is none, and
// that this text is read as the same again, or refused if a secret is missing in it.
func Texts(t *testing.T, texts map[string]string) {
	t.Helper()
	for url, want := range texts {
		if want == "" {
			want = url
		}
		c, err := config.Parse(url)
		if err == nil {
			err = c.Validate()
		}
		if err != nil || c.String() != want {
			t.Errorf("%s: %v, %v, expected %s", url, c, err, want)
			continue
		}
		again, err := config.Parse(want)
		if strings.Contains(want, "[REDACTED]") {
			if err == nil || !strings.Contains(err.Error(), "the mask of a secret") {
				t.Errorf("%s: its text %s is read, although the secret is missing: %v", url, want, err)
			}
		} else if err != nil || again.String() != want {
			t.Errorf("%s: its text %s is read as %v, %v", url, want, again, err)
		}
	}
}

// Ways is one configuration as a URL, as a file in YAML, and in the environment.
type Ways struct {
	URL, YAML string
	Env       []string
}

// SameLocks opens the configuration in each way, until the end of the test, and checks that a lock of one is held for
// all others, whether these are of another way or of the program's own making. It returns what it has opened, by "URL",
// "file" and "environment".
func (w Ways) SameLocks(t *testing.T, own ...locker.Locker) map[string]*config.Opened {
	t.Helper()
	file := filepath.Join(t.TempDir(), "locker.yaml")
	if err := os.WriteFile(file, []byte(w.YAML), 0o600); err != nil {
		t.Fatal(err)
	}
	inURL, wrong := config.Parse(w.URL)
	inFile, err := config.Load(file)
	inEnv := new(config.Config)
	if err := errors.Join(wrong, err, inEnv.Overlay(w.Env)); err != nil {
		t.Fatal(err)
	}
	opened := map[string]*config.Opened{}
	for way, c := range map[string]*config.Config{"URL": inURL, "file": inFile, "environment": inEnv} {
		if text := c.String(); strings.Contains(text, Secret) {
			t.Errorf("%s: the secret is in %s", way, text)
		}
		l, err := c.Open(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", way, err)
		}
		t.Cleanup(func() { _ = l.Close() })
		opened[way] = l
		own = append(own, l)
	}
	lease, err := own[0].TryLock(t.Context(), "one for all", locker.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range own[1:] {
		if _, err := l.TryLock(t.Context(), "one for all"); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("a lock of another way: %v, expected to find it held", err)
		}
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	return opened
}
