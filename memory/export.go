package memory

import (
	"context"
	"time"

	"github.com/golocker/locker/backend"
)

// Export implements [backend.Exporter].
func (b *Backend) Export(_ context.Context, req backend.Request, to string) error {
	b.mu.Lock()
	defer b.unlock()
	l, err := b.ownedBy(req, to)
	if err != nil {
		return err
	}
	if l.token != to { // otherwise it was exported before, and ends when that request said
		l.token, l.expires = to, time.Now().Add(req.TTL)
		l.tellSooner()
		b.tell(req.Key)
	}
	return nil
}

// Resume implements [backend.Exporter]. Its outcome is always known, so no attempt is undone.
func (b *Backend) Resume(_ context.Context, req backend.Request, from string) (backend.Grant, error) {
	b.mu.Lock()
	defer b.unlock()
	l, err := b.ownedBy(req, from)
	if err != nil {
		return backend.Grant{}, err
	}
	if l.token == from {
		b.grant(l, req, 1)
		l.tellSooner()
	}
	return l.granted(), nil
}

// ownedBy returns the lock of req.Key if req.Token or other owns it. Call with mu held.
func (b *Backend) ownedBy(req backend.Request, other string) (*lock, error) {
	l, err := b.owned(req)
	if err != nil {
		req.Token = other
		l, err = b.owned(req)
	}
	return l, err
}
