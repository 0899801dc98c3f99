package boltlock_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"example.com/custombackend/boltlock"
	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
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
func (s store) update(f func(locks *bolt.Bucket) error) {
	db, err := bolt.Open(s.path, 0o600, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	s.must(db.Update(func(tx *bolt.Tx) error {
		locks, err := tx.CreateBucketIfNotExists([]byte("locks"))
		if err != nil {
			return err
		}
		return f(locks)
	}))
}

func id(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return sum[:]
}

func (s store) delete(key string) {
	s.update(func(locks *bolt.Bucket) error { return locks.Delete(id(key)) })
}

func (s store) foreign(key string) (intact func() bool) {
	const text = "not a lock"
	s.update(func(locks *bolt.Bucket) error { return locks.Put(id(key), []byte(text)) })
	return func() (same bool) {
		s.update(func(locks *bolt.Bucket) error {
			same = string(locks.Get(id(key))) == text
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

// left lists all records. First the acquisition of another lock removes those that have expired without a release.
func (s store) left() (left []string) {
	l := boltlock.New(s.path)
	defer l.Close()
	s.must(locker.Do(s.t.Context(), l, "another", func(context.Context) error { return nil }))
	s.update(func(locks *bolt.Bucket) error {
		return locks.ForEach(func(_, text []byte) error {
			left = append(left, string(text))
			return nil
		})
	})
	return left
}

// harness is what the suites need. They run in virtual time, because the backend waits for no other process.
var harness = conformance.Harness{
	Bubble: synctest.Test,
	Labels: true,
	Store: func(t testing.TB) conformance.Store {
		s := newStore(t)
		return conformance.Store{
			Open:    func() locker.Backend { return boltlock.NewBackend(s.path) },
			Delete:  s.delete,
			Foreign: s.foreign,
			Hang:    s.hang,
			Down:    s.down,
			Restart: s.restart,
			Left:    s.left,
		}
	},
}

func TestBackend(t *testing.T)   { conformance.RunBackend(t, harness) }
func TestSemaphore(t *testing.T) { conformance.RunSemaphore(t, harness) }
func TestRWLock(t *testing.T)    { conformance.RunRWLock(t, harness) }

// leaving is a context that ends when the operation that has the file first asks for its error. Then no caller waits
// for the result.
type leaving struct {
	context.Context
	leave func()
	once  sync.Once
}

func (c *leaving) Err() (err error) {
	err = c.Context.Err()
	c.once.Do(c.leave)
	return err
}

// A grant that comes late is undone, by Close at the latest. The suites do not check this, because they cannot slow the
// disk down.
func TestLateGrantIsUndone(t *testing.T) {
	s := newStore(t)
	other := boltlock.NewBackend(s.path)
	defer other.Close()
	late := 0
	for i := range 20 {
		b := boltlock.NewBackend(s.path)
		req := locker.Request{Key: fmt.Sprint(i), Token: "late", TTL: time.Hour}
		ctx, leave := context.WithCancel(t.Context())
		_, err := b.Acquire(&leaving{Context: ctx, leave: leave}, req)
		s.must(b.Close())
		if err == nil {
			continue // the attempt was faster
		} else if !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("an attempt whose caller leaves: expected ErrUnavailable, seen %v", err)
		}
		late++
		req.Token = "next"
		if _, err := other.Acquire(t.Context(), req); err != nil {
			t.Errorf("the next attempt: expected the lock, seen %v", err)
		}
	}
	if late == 0 {
		t.Error("no attempt was late: nothing is shown")
	}
}

// dawdling is a context that ends when it is first asked for its error, and holds up that operation until goOn. Then
// no caller waits for the result any more.
type dawdling struct {
	context.Context
	leave func()
	began atomic.Bool
	goOn  chan struct{}
}

func (c *dawdling) Err() error {
	if !c.began.Swap(true) {
		c.leave()
		<-c.goOn
	}
	return c.Context.Err()
}

func TestCloseWaitsForWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		b := boltlock.NewBackend(s.path)
		ctx, leave := context.WithCancel(t.Context())
		slow := &dawdling{Context: ctx, leave: leave, goOn: make(chan struct{})}
		_, err := b.Acquire(slow, locker.Request{Key: "k", Token: "t", TTL: time.Hour})
		if !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("an attempt whose caller leaves: expected ErrUnavailable, seen %v", err)
		}
		var closed atomic.Bool
		go func() {
			s.must(b.Close())
			closed.Store(true)
		}()
		synctest.Wait()
		if closed.Load() {
			t.Error("Close has returned, and an attempt is still under way")
		}
		close(slow.goOn)
		synctest.Wait()
		if !closed.Load() {
			t.Error("Close has not returned, and nothing is under way")
		}
	})
}

func TestCloseDoesNotWaitForTheFile(t *testing.T) {
	s := newStore(t)
	defer s.hang()()
	b := boltlock.NewBackend(s.path)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := b.Release(ctx, locker.Request{Key: "k", Token: "t", TTL: time.Hour})
	if !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("Release while another process has the file: expected ErrUnavailable, seen %v", err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.must(b.Close())
	}()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Error("Close waits for a release that nobody answers")
	}
}
