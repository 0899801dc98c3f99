//go:build unix

package files_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"example.com/custombackend/files"
	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
)

// store is a directory, and what can happen to it.
type store struct {
	t   testing.TB
	dir string
}

func newStore(t testing.TB) store { return store{t, t.TempDir()} }

func (s store) path(key string) string {
	return filepath.Join(s.dir, fmt.Sprintf("%x.lock", sha256.Sum256([]byte(key))))
}

func (s store) delete(key string) {
	if err := os.Remove(s.path(key)); err != nil && !os.IsNotExist(err) {
		s.t.Error(err)
	}
	time.Sleep(time.Microsecond) // it takes a moment; without the file, the clock alone makes tokens grow
}

// hang does what a process does that is stopped while it has the directory.
func (s store) hang() (resume func()) {
	dir, err := os.Open(s.dir)
	for locked := false; err == nil && !locked; locked = err == nil {
		err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return func() { _ = dir.Close() }
}

func (s store) foreign(key string) (intact func() bool) {
	const text = "not a lock"
	if err := os.WriteFile(s.path(key), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return func() bool {
		seen, _ := os.ReadFile(s.path(key))
		return string(seen) == text
	}
}

// down takes the directory away.
func (s store) down() (up func()) {
	must := func(err error) {
		if err != nil {
			s.t.Error(err)
		}
	}
	must(os.Rename(s.dir, s.dir+".away"))
	return func() { must(os.Rename(s.dir+".away", s.dir)) }
}

// left lists the files that are none of a lock: those stay, for the counter.
func (s store) left() (left []string) {
	files, err := os.ReadDir(s.dir)
	if err != nil {
		s.t.Error(err)
	}
	for _, f := range files {
		if filepath.Ext(f.Name()) != ".lock" {
			left = append(left, f.Name())
		}
	}
	return left
}

// The rules, one attempt at a time. In virtual time, for nothing in here waits for another process.
func TestBackend(t *testing.T) {
	conformance.RunBackend(t, conformance.BackendHarness{
		Bubble: synctest.Test,
		Store: func(t testing.TB) conformance.BackendStore {
			s := newStore(t)
			return conformance.BackendStore{
				Open:    func() locker.Backend { return files.NewBackend(s.dir) },
				Delete:  s.delete,
				Foreign: s.foreign,
				Hang:    s.hang,
				Down:    s.down,
				Left:    s.left,
			}
		},
	})
}

// The whole, under a Client.
func TestLocker(t *testing.T) {
	conformance.RunLocker(t, conformance.LockerHarness{
		Bubble: synctest.Test,
		Store: func(t testing.TB) conformance.LockerStore {
			s := newStore(t)
			return conformance.LockerStore{
				Client: func() locker.Locker { return files.New(s.dir) },
				Delete: s.delete,
				Hang:   s.hang,
				Left:   s.left,
			}
		},
	})
}
