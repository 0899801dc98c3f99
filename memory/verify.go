package memory

import (
	"context"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// Verify implements [backend.Verifier].
func (b *Backend) Verify(_ context.Context, req backend.Request) error {
	b.mu.Lock()
	defer b.unlock()
	if req.Group != nil { // an entry has one token
		_, _, err := b.ownedEntry(req)
		return err
	}
	l, err := b.owned(req)
	if err == nil && l.fence > req.Fence { // the acquisition was executed once more
		err = &locker.NotHeldError{Reason: locker.LostSuperseded}
	}
	return err
}
