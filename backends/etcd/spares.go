package etcd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// maxSpares is how many leases a Backend keeps for later locks.
const maxSpares = 128

// spares are leases without an entry: those of locks that were released, and of attempts that found a lock held. The
// next lock with the same TTL takes one and renews it. That saves etcd two entries in its log, one for a new lease and
// one for the end of the old one, and the caller a round trip.
//
// A lease is kept only if every request that writes an entry with it has been answered, so none can come late.
type spares struct {
	mu     sync.Mutex
	leases []ttl
	closed bool
}

// lasts reports whether at least half of the TTL is left.
func (l ttl) lasts() bool { return time.Until(l.end()) > time.Duration(l.asks)*time.Second/2 }

// keep takes l, if there is room for it.
func (s *spares) keep(l ttl) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.leases) == maxSpares {
		s.leases = slices.DeleteFunc(s.leases, func(old ttl) bool { return !old.lasts() })
	}
	if s.closed || len(s.leases) == maxSpares || l.id == 0 || l.renewal != nil || !l.lasts() {
		return false
	}
	s.leases = append(s.leases, l)
	return true
}

// take returns a lease that was asked for asks seconds, if there is one. The others of this TTL end by themselves.
func (s *spares) take(asks int64) (ttl, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.leases) - 1; i >= 0; i-- {
		if l := s.leases[i]; l.asks == asks {
			s.leases = slices.Delete(s.leases, i, i+1)
			if l.lasts() {
				return l, true
			}
		}
	}
	return ttl{}, false
}

// drop forgets the leases, and returns them.
func (s *spares) drop() []ttl {
	s.mu.Lock()
	defer s.mu.Unlock()
	leases := s.leases
	s.leases = nil
	return leases
}

// close is drop, and there will be no others.
func (s *spares) close() []ttl {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return s.drop()
}

// spare keeps a lease without an entry, or revokes it.
func (b *Backend) spare(l ttl, longest time.Duration) {
	if !b.spares.keep(l) {
		b.revoke(l, longest)
	}
}

// begin returns a lease for d from now: a spare one, whose renewal is under way, or a new one. Call settle before
// relying on it.
func (b *Backend) begin(ctx context.Context, d time.Duration) (ttl, error) {
	if !b.renewals.busy() {
		if l, ok := b.spares.take(seconds(d)); ok {
			l.sent, l.renewal = time.Now(), b.renewals.send(l.id)
			return l, nil
		}
	}
	return b.lease(ctx, d)
}

// settle waits for the renewal of a lease from begin.
func (b *Backend) settle(ctx context.Context, l *ttl) error {
	if l.renewal == nil {
		return nil
	}
	left, err := b.renewals.await(ctx, l.renewal)
	switch {
	case err != nil:
		return err
	case left <= 0:
		return rpctypes.ErrLeaseNotFound
	}
	l.renewal = nil
	return nil
}

// stale reports whether an attempt has failed because its spare lease had ended early: somebody has revoked it, or etcd
// was restored. The other spare leases are then not used either, and another attempt makes new ones.
func (b *Backend) stale(err error) bool {
	if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return false
	}
	b.spares.drop()
	return true
}
