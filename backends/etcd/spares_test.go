package etcd_test

import (
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/etcd"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

// The locks of a Client use the same leases of etcd again.
func TestSpareLeases(t *testing.T) {
	t.Parallel()
	s := newStore(t, etcdtest.Start(t))
	cheap(t, s)
	endedEarly(t, s)
	replacedMeanwhile(t, s)
}

// An acquisition and a release write two entries to the log of etcd.
func cheap(t *testing.T, s *store) {
	l := s.client()
	cycles := func(n int) {
		for range n {
			unlock(t, lock(t, l, "k", locker.TTL(time.Hour)))
		}
	}
	cycles(1)
	const entries = "etcd_server_proposals_committed_total"
	before := s.member.Metric(entries)
	cycles(50)
	if n := (s.member.Metric(entries) - before) / 50; n > 2.5 {
		t.Errorf("expected two entries of the log for each cycle, seen %.1f", n)
	}
}

// Somebody revokes the spare leases. The next calls make new ones.
func endedEarly(t *testing.T, s *store) {
	l := s.client()
	for _, acquire := range []func() (locker.Lease, error){
		func() (locker.Lease, error) { return l.Lock(t.Context(), "k", locker.TTL(time.Hour)) },
		func() (locker.Lease, error) { return l.TryLock(t.Context(), "k", locker.TTL(time.Hour)) },
	} {
		for range 2 {
			lease, err := acquire()
			s.must(err)
			of, _ := s.entry(lease)
			unlock(t, lease)
			_, err = s.direct.Revoke(t.Context(), of)
			s.must(err)
		}
	}
}

// A lock is released while an extension with another TTL replaces its lease. The extension revokes the old one. No
// other lock may have that by then.
func replacedMeanwhile(t *testing.T, s *store) {
	p := &postman{answers: true}
	l := etcd.New(p.client(s), etcd.Prefix(s.prefix))
	defer l.Close()
	lease := lock(t, l, "k", locker.TTL(time.Minute))
	old, _ := s.entry(lease)
	p.keep(writes)
	result := make(chan error)
	go func() { result <- locker.ExtendTTL(t.Context(), lease, time.Hour) }()
	<-p.kept
	unlock(t, lease)
	next := lock(t, l, "next", locker.TTL(time.Minute))
	close(p.deliver)
	<-result
	until(t, "the old lease has been revoked", func() bool {
		left, err := s.direct.TimeToLive(t.Context(), old)
		s.must(err)
		return left.TTL < 0
	})
	if err := locker.Verify(t.Context(), next); err != nil {
		t.Errorf("the next lock: expected it to be held, seen %v", err)
	}
	unlock(t, next)
}
