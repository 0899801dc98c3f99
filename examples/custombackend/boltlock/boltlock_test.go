package boltlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"example.com/custombackend/boltlock"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/record/recordtest"
)

func TestMain(m *testing.M) {
	// The tests use a directory in memory, if there is one. They are not about power cuts, and a disk would take most
	// of the time.
	if _, err := os.Stat("/dev/shm"); err == nil && os.Getenv("TMPDIR") == "" {
		_ = os.Setenv("TMPDIR", "/dev/shm")
	}
	goleak.VerifyTestMain(m)
}

// store is a file, with the faults that tests can cause.
type store struct {
	t    testing.TB
	path string
}

func newStore(t testing.TB) store {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return store{t, filepath.Join(dir, "locks.db")}
}

func (s store) open() *boltlock.Store { return boltlock.NewStore(s.path) }

func (s store) must(err error) {
	if err != nil {
		s.t.Helper()
		s.t.Error(err)
	}
}

// hang keeps the file open, like a process that is stopped in an operation.
func (s store) hang() (resume func()) {
	db, err := bolt.Open(s.path, 0o600, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return func() { s.must(db.Close()) }
}

// update changes the file without the backends.
func (s store) update(f func(records *bolt.Bucket) error) {
	db, err := bolt.Open(s.path, 0o600, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	s.must(db.Update(func(tx *bolt.Tx) error {
		records, err := tx.CreateBucketIfNotExists([]byte("locks"))
		if err != nil {
			return err
		}
		return f(records)
	}))
}

func (s store) delete(key string) {
	s.update(func(records *bolt.Bucket) error { return records.Delete([]byte(record.NameOf(key))) })
}

func (s store) foreign(key string) (intact func() bool) {
	const text = "not a lock"
	s.update(func(records *bolt.Bucket) error { return records.Put([]byte(record.NameOf(key)), []byte(text)) })
	return func() (same bool) {
		s.update(func(records *bolt.Bucket) error {
			same = string(records.Get([]byte(record.NameOf(key)))) == text
			return nil
		})
		return same
	}
}

// down removes the directory.
func (s store) down() (up func()) {
	dir := filepath.Dir(s.path)
	s.must(os.Rename(dir, dir+".away"))
	return func() { s.must(os.Rename(dir+".away", dir)) }
}

// restart has nothing to do: the store is only the file, and no process has it open between two operations.
func (s store) restart() {}

// left returns a function that lists the records of locks that are taken. The observer knows when their time is over.
func (s store) left() func() []string {
	observer := record.NewBackend(s.open())
	s.t.Cleanup(func() { s.must(observer.Close()) })
	return func() (left []string) {
		var taken []string
		s.update(func(records *bolt.Bucket) error {
			return records.ForEach(func(name, text []byte) error {
				var lock struct{ State string }
				if json.Unmarshal(text, &lock) != nil || lock.State != "free" {
					taken = append(taken, string(name))
				}
				return nil
			})
		})
		for _, name := range taken {
			if seen, err := observer.Inspect(s.t.Context(), name); err != nil || seen.State != inspect.Free {
				left = append(left, name)
			}
		}
		return left
	}
}

// slow is a Store whose requests take a millisecond. In virtual time a disk takes none, and all would happen at once.
type slow struct{ record.Store }

func (s slow) Get(ctx context.Context, name string) ([]byte, string, error) {
	time.Sleep(time.Millisecond)
	return s.Store.Get(ctx, name)
}

func (s slow) Create(ctx context.Context, name string, text []byte) (string, error) {
	time.Sleep(time.Millisecond)
	return s.Store.Create(ctx, name, text)
}

func (s slow) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	time.Sleep(time.Millisecond)
	return s.Store.Replace(ctx, name, version, text)
}

// harness is what the suites need. They run in virtual time, because the store waits for no other process.
var harness = conformance.Harness{
	Bubble: synctest.Test,
	Store: func(t testing.TB) conformance.Store {
		s := newStore(t)
		return conformance.Store{
			Open:    func() backend.Backend { return record.NewBackend(slow{s.open()}) },
			Delete:  s.delete,
			Foreign: s.foreign,
			Hang:    s.hang,
			Down:    s.down,
			Restart: s.restart,
			Left:    s.left(),
		}
	},
}

func TestStore(t *testing.T) {
	recordtest.Run(t, func(t testing.TB, path string) (record.Store, string) {
		if path == "" {
			path = newStore(t).path
		}
		return boltlock.NewStore(path), path
	})
}

func TestBackend(t *testing.T)   { conformance.RunBackend(t, harness) }
func TestSemaphore(t *testing.T) { conformance.RunSemaphore(t, harness) }
func TestRWLock(t *testing.T)    { conformance.RunRWLock(t, harness) }

// stuck is a context that ends when it is first asked for its error, and holds up who asks until goOn, as a disk may.
type stuck struct {
	context.Context
	leave func()
	asked atomic.Bool
	goOn  chan struct{}
}

func (c *stuck) Err() error {
	if !c.asked.Swap(true) {
		c.leave()
		<-c.goOn
	}
	return c.Context.Err()
}

func TestCallsDoNotWaitForASlowDisk(t *testing.T) {
	s := newStore(t)
	ctx, leave := context.WithCancel(t.Context())
	slow := &stuck{Context: ctx, leave: leave, goOn: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		_, err := s.open().Create(slow, "k", []byte("text"))
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("expected the error of the context, seen %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a call whose context has ended waits for the disk")
	}
	close(slow.goOn)
}

// A process that keeps the file costs the others no more than their patience.
func TestCallsEndWithTheirContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		defer s.hang()()
		b := record.NewBackend(s.open())
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := b.Acquire(ctx, backend.Request{Key: "k", Token: "t", TTL: time.Hour})
		if took := time.Since(start); !errors.Is(err, locker.ErrUnavailable) || took > 15*time.Millisecond {
			t.Errorf("while another process has the file: expected ErrUnavailable, seen %v after %v", err, took)
		}
		s.must(b.Close())
	})
}
