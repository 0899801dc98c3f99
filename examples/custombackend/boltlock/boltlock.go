// Package boltlock is a store of locks in a bbolt file, which the processes of one machine share, and which survives
// them. It shows what a backend needs that does not use Redis. locker.Client waits, renews and notices losses.
//
// Expiry follows the machine's clock. A step back of the clock prolongs locks; a step forward ends them early.
package boltlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/golocker/locker"
)

// New returns a Locker that keeps its locks in the file at path, on a local file system. The file need not exist.
func New(path string) *locker.Client { return locker.NewClient(NewBackend(path)) }

// Backend implements locker.Backend.
type Backend struct {
	path    string
	prefix  string        // of all keys
	poll    time.Duration // how often it looks whether the file is free
	closing chan struct{}

	mu         sync.Mutex
	closed     bool
	background sync.WaitGroup // Add under mu while not closed
}

// NewBackend returns a Backend of the file at path. Several Backends, in one process or in many, share the locks in
// the file.
func NewBackend(path string) *Backend {
	return &Backend{path: path, poll: time.Millisecond, closing: make(chan struct{})}
}

// Acquire implements locker.Backend.
func (b *Backend) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	var g locker.Grant // the caller gets it only if the transaction succeeds
	err := b.do(ctx, func(l locks) error {
		r, err := l.get(req.Key)
		remaining := time.Until(r.Expires)
		switch {
		case err != nil:
			return err
		case remaining > 0 && r.Token == req.Token: // the same request again is granted again
			g.Fence = r.Fence
			return nil
		case remaining > 0:
			return &locker.HeldError{Remaining: remaining, Label: r.Label}
		}
		if err := l.sweep(); err != nil {
			return err
		}
		if g.Fence, err = l.nextFence(); err != nil {
			return err
		}
		return l.put(req.Key, record{req.Token, req.Label, g.Fence, time.Now().Add(req.TTL)})
	}, func() {
		if g.Fence != 0 { // the caller did not get this grant, which may be in the file
			b.releaseLater(req)
		}
	})
	if err != nil {
		return locker.Grant{}, err
	}
	return g, nil
}

// Extend implements locker.Backend.
func (b *Backend) Extend(ctx context.Context, req locker.Request) error {
	return b.do(ctx, func(l locks) error {
		r, err := l.owned(req)
		if err != nil {
			return err
		}
		if end := time.Now().Add(req.TTL); end.After(r.Expires) {
			r.Expires = end
		}
		return l.put(req.Key, r)
	}, func() {})
}

// Release implements locker.Backend.
func (b *Backend) Release(ctx context.Context, req locker.Request) error {
	err := b.do(ctx, func(l locks) error { return release(l, req) }, func() {})
	if errors.Is(err, locker.ErrUnavailable) {
		_ = b.inBackground(func() { b.releaseLater(req) })
	}
	return err
}

func release(l locks, req locker.Request) error {
	r, err := l.owned(req)
	switch {
	case err != nil:
		return err
	case req.Keep > 0:
		return l.put(req.Key, record{"", "", r.Fence, time.Now().Add(req.Keep)})
	default:
		return l.delete(req.Key)
	}
}

// releaseLater repeats a release until it is answered, its lock has ended anyway, or Close is called.
func (b *Backend) releaseLater(req locker.Request) {
	ctx, cancel := context.WithTimeout(context.Background(), req.TTL)
	defer cancel()
	for errors.Is(b.update(ctx, func(l locks) error { return release(l, req) }), locker.ErrUnavailable) {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return
		case <-b.closing:
			return
		}
	}
}

// do changes the store by f, and waits until that is done or ctx ends; a disk may take longer. If f may have changed
// something and the caller was not told of success, failed is called.
func (b *Backend) do(ctx context.Context, f func(locks) error, failed func()) error {
	answer := make(chan error) // without a buffer, so that a send fails if the caller has left
	err := b.inBackground(func() {
		err := b.update(ctx, f)
		select {
		case answer <- err:
			if err == nil {
				return
			}
		case <-ctx.Done():
		}
		failed()
	})
	if err != nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return unavailable(ctx.Err())
	}
}

func (b *Backend) inBackground(f func()) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return locker.ErrClosed
	}
	b.background.Go(f)
	return nil
}

// Close implements io.Closer: the Client calls it once. It ends waiting for the file, but not for the disk.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	close(b.closing)
	b.background.Wait()
	return nil
}
