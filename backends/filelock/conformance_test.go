//go:build linux || darwin

package filelock_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/filelock"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/record/recordtest"
)

func open(t testing.TB, dir string) *filelock.Store {
	t.Helper()
	s, err := filelock.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	recordtest.Run(t, func(t testing.TB, dir string) (record.Store, string) {
		if dir == "" {
			dir = filepath.Join(t.TempDir(), "locks")
		}
		s := open(t, dir)
		t.Cleanup(func() { _ = s.Close() })
		return s, dir
	})
}

// faults are what happens to the calls of all Stores of a directory.
type faults struct {
	mu      sync.Mutex
	hangs   chan struct{} // closed when they go on; nil if they do not hang
	lose    bool
	pending sync.WaitGroup
}

// faulty is a Store that meets faults. They are on the way to the files and back: a file system does not hang on
// command.
type faulty struct {
	*filelock.Store
	*faults
}

var errLost = errors.New("the answer was lost")

// meet makes a call when the Store does not hang any more, even if nobody waits for it then.
func (f *faults) meet(ctx context.Context, call func(ctx context.Context) error) error {
	f.mu.Lock()
	hangs, lose := f.hangs, f.lose
	f.lose = false
	f.mu.Unlock()
	if hangs != nil {
		select {
		case <-hangs:
		case <-ctx.Done():
			f.pending.Go(func() {
				<-hangs
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = call(ctx)
			})
			return ctx.Err()
		}
	}
	err := call(ctx)
	if lose {
		return errLost
	}
	return err
}

func (f faulty) Get(ctx context.Context, name string) (text []byte, version string, err error) {
	var m sync.Mutex // the call may go on
	err = f.meet(ctx, func(ctx context.Context) error {
		t, v, err := f.Store.Get(ctx, name)
		m.Lock()
		defer m.Unlock()
		text, version = t, v
		return err
	})
	m.Lock()
	defer m.Unlock()
	return text, version, err
}

func (f faulty) Create(ctx context.Context, name string, text []byte) (string, error) {
	return f.put(ctx, func(ctx context.Context) (string, error) { return f.Store.Create(ctx, name, text) })
}

func (f faulty) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	return f.put(ctx, func(ctx context.Context) (string, error) { return f.Store.Replace(ctx, name, version, text) })
}

func (f faulty) put(ctx context.Context, call func(ctx context.Context) (string, error)) (string, error) {
	versions := make(chan string, 1)
	err := f.meet(ctx, func(ctx context.Context) error {
		v, err := call(ctx)
		versions <- v
		return err
	})
	if err != nil {
		return "", err
	}
	return <-versions, nil
}

// spy is a Store that knows which record was read last.
type spy struct {
	record.Store
	name string
}

func (s *spy) Get(_ context.Context, name string) ([]byte, string, error) {
	s.name = name
	return nil, "", nil
}

// fileOf returns the name of the file of a key.
func fileOf(t testing.TB, key string) string {
	t.Helper()
	s := new(spy)
	b := record.NewBackend(s)
	defer b.Close()
	if _, err := b.Inspect(t.Context(), key); err != nil {
		t.Error(err)
	}
	return s.name
}

// left lists the files of locks that are taken, and others that are no records.
func left(t testing.TB, dir string) (names []string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err == nil && len(text) == 0 {
			continue // what Create has made to lock it
		}
		var lock struct {
			State  string `json:"state"`
			Length int64  `json:"length_ms"`
		}
		info, infoErr := f.Info()
		if err = errors.Join(err, infoErr, json.Unmarshal(text, &lock)); err != nil ||
			lock.State != "free" && time.Since(info.ModTime()) < time.Duration(lock.Length)*time.Millisecond {
			names = append(names, f.Name())
		}
	}
	return names
}

func TestConformance(t *testing.T) {
	h := conformance.Harness{Store: func(t testing.TB) conformance.Store {
		base, f := t.TempDir(), new(faults)
		disk, none, mount := filepath.Join(base, "disk"), filepath.Join(base, "none"), filepath.Join(base, "mount")
		dir := filepath.Join(mount, "locks")
		// point changes in one step what is mounted. At no moment is there no directory: a lock in it would be lost then.
		point := func(to string) {
			if err := errors.Join(os.Symlink(to, mount+".new"), os.Rename(mount+".new", mount)); err != nil {
				t.Error(err)
			}
		}
		point(disk)
		err := errors.Join(os.MkdirAll(filepath.Join(disk, "locks"), 0o700), os.WriteFile(none, nil, 0o600))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.pending.Wait)
		return conformance.Store{
			Open: func() backend.Backend {
				return record.NewBackend(faulty{open(t, dir), f}, record.Poll(filelock.DefaultPoll))
			},
			Delete: func(key string) {
				if err := os.Remove(filepath.Join(dir, fileOf(t, key))); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
				}
			},
			Hang: func() (resume func()) {
				f.mu.Lock()
				defer f.mu.Unlock()
				hangs := make(chan struct{})
				f.hangs = hangs
				return func() {
					f.mu.Lock()
					defer f.mu.Unlock()
					if f.hangs == hangs {
						f.hangs = nil
						close(hangs)
					}
				}
			},
			Down: func() (up func()) { // nobody can tell whether there is a directory
				point(none)
				return func() { point(disk) }
			},
			LoseReply: func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.lose = true
			},
			Left: func() []string { return left(t, dir) },
			Foreign: func(key string) (intact func() bool) {
				path, text := filepath.Join(dir, fileOf(t, key)), "not a lock"
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Error(err)
				}
				return func() bool {
					is, err := os.ReadFile(path)
					return err == nil && string(is) == text
				}
			},
		}
	}}
	conformance.RunBackend(t, h)
	conformance.RunSemaphore(t, h)
	conformance.RunRWLock(t, h)
}
