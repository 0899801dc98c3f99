//go:build unix

// Package files is a store of locks in a directory: a file per lock, and flock(2) on the directory while one is read or
// written. It excludes the processes of one machine, and survives all of them. It shows what a backend over something
// that is not Redis takes; waiting, renewal and release order are locker.Client's.
//
// Expiry follows the machine's clock: a step back of it prolongs locks, a step forward ends them early.
package files

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/golocker/locker"
)

// New returns a Locker that keeps its locks in dir, which must exist, on a local file system.
func New(dir string) *locker.Client { return locker.NewClient(NewBackend(dir)) }

// Backend implements locker.Backend.
type Backend struct {
	dir     string
	closing chan struct{}

	mu         sync.Mutex
	closed     bool
	background sync.WaitGroup // releases that could not be made in time; Add under mu while not closed
}

// NewBackend returns a Backend of dir. Several, in one process or in many, share what is in there.
func NewBackend(dir string) *Backend { return &Backend{dir: dir, closing: make(chan struct{})} }

// record is what is in the file of a lock. The file stays, for the counter.
type record struct {
	Token   string    // of the owner; "" is nobody
	Fence   uint64    // the last that was granted
	Expires time.Time // whoever the owner is, nobody else gets the lock before
}

func (r *record) taken() bool               { return time.Now().Before(r.Expires) }
func (r *record) ownedBy(token string) bool { return r.taken() && r.Token == token }

// Acquire implements locker.Backend. What it does happens before it returns or not at all, so that there is never
// anything to undo.
func (b *Backend) Acquire(ctx context.Context, req locker.Request) (g locker.Grant, err error) {
	err = b.update(ctx, req.Key, func(r *record) error {
		switch {
		case r.ownedBy(req.Token): // asked twice: granted twice
		case r.taken():
			return &locker.HeldError{Remaining: time.Until(r.Expires)}
		default:
			// By the clock, so that tokens grow even if somebody has deleted the file.
			r.Fence = max(r.Fence+1, uint64(time.Now().UnixMicro()))
			r.Token, r.Expires = req.Token, time.Now().Add(req.TTL)
		}
		g.Fence = r.Fence
		return nil
	})
	return g, err
}

// Extend implements locker.Backend.
func (b *Backend) Extend(ctx context.Context, req locker.Request) error {
	return b.update(ctx, req.Key, func(r *record) error {
		if !r.ownedBy(req.Token) {
			return locker.ErrNotHeld
		}
		if end := time.Now().Add(req.TTL); end.After(r.Expires) {
			r.Expires = end
		}
		return nil
	})
}

// Release implements locker.Backend.
func (b *Backend) Release(ctx context.Context, req locker.Request) error {
	err := b.release(ctx, req)
	if err != nil && !errors.Is(err, locker.ErrNotHeld) {
		b.goOn(req)
	}
	return err
}

func (b *Backend) release(ctx context.Context, req locker.Request) error {
	return b.update(ctx, req.Key, func(r *record) error {
		if !r.ownedBy(req.Token) {
			return locker.ErrNotHeld
		}
		r.Token, r.Expires = "", time.Now().Add(req.Keep)
		return nil
	})
}

// goOn repeats a release until it is answered, its lock has ended anyway, or Close is called.
func (b *Backend) goOn(req locker.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), req.TTL)
		defer cancel()
		for {
			if err := b.release(ctx, req); !errors.Is(err, locker.ErrUnavailable) || ctx.Err() != nil {
				return
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-b.closing:
				return
			}
		}
	})
}

// Close implements io.Closer: the Client calls it once.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	close(b.closing)
	b.background.Wait()
	return nil
}

// update changes the record of key by f, in one step that no other process sees half of. If f fails, nothing changes.
func (b *Backend) update(ctx context.Context, key string, f func(*record) error) error {
	select {
	case <-b.closing:
		return locker.ErrClosed
	default:
	}
	unlock, err := b.flock(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", locker.ErrUnavailable, err)
	}
	defer unlock()
	// Keys may be long and have any bytes; names of files may not.
	path := filepath.Join(b.dir, fmt.Sprintf("%x.lock", sha256.Sum256([]byte(key))))
	var r record
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("%w: %w", locker.ErrUnavailable, err)
	case json.Unmarshal(text, &r) != nil:
		return locker.ErrForeignKey
	}
	if err := f(&r); err != nil {
		return err
	}
	if err := write(path, r); err != nil {
		return fmt.Errorf("%w: %w", locker.ErrUnavailable, err)
	}
	return nil
}

// write replaces the file at once: a process that is killed leaves the old record or the new one.
func write(path string, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// flock waits for the directory. The kernel gives it back when the process dies; a process that is stopped keeps it, and
// then everybody else's calls end with their contexts. A flock that blocks could not be interrupted, so this one asks again.
func (b *Backend) flock(ctx context.Context) (unlock func(), err error) {
	dir, err := os.Open(b.dir)
	if err != nil {
		return nil, err
	}
	for {
		err := ctx.Err()
		if err == nil {
			err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
		switch {
		case err == nil:
			return func() { _ = dir.Close() }, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			_ = dir.Close()
			return nil, err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		case <-b.closing:
			_ = dir.Close()
			return nil, locker.ErrClosed
		}
	}
}
