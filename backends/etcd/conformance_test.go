package etcd_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/etcd"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance runs the suites, with a member of etcd for each property. With -short it leaves out what a Client
// hides, most of which waits for many TTLs of a second.
func TestConformance(t *testing.T) {
	run := conformance.RunBackend
	if testing.Short() {
		run = conformance.RunLocker
	}
	run(t, conformance.Harness{
		MinTTL: time.Second, Granularity: time.Second, FIFO: true, Labels: true, Verifies: true,
		Store: func(t testing.TB) conformance.Store {
			s := newStore(t)
			return conformance.Store{
				Open:   func() locker.Backend { return s.open() },
				Delete: s.delete, Foreign: s.foreign, Left: s.left,
				Hang: func() (resume func()) {
					s.member.Pause()
					return s.member.Resume
				},
				Down: func() (up func()) {
					s.relay.Refuse()
					return s.relay.Accept
				},
				LoseReply: func() { s.relay.Lose(1) },
				Restart:   s.member.Restart,
			}
		},
	})
}

// store is an etcd of one member behind a relay.
type store struct {
	t      testing.TB
	member *etcdtest.Member
	relay  *etcdtest.Relay
	prefix string
	direct *clientv3.Client // not through the relay
}

var stores atomic.Int32

func newStore(t testing.TB) *store {
	t.Helper()
	s := &store{t: t, member: etcdtest.Start(t), prefix: fmt.Sprintf("p%d/", stores.Add(1))}
	s.relay = etcdtest.NewRelay(t, s.member.Addr())
	var err error
	s.direct, err = clientv3.New(clientv3.Config{
		Endpoints: []string{"http://" + s.member.Addr()}, Logger: zap.NewNop(),
	})
	s.must(err)
	t.Cleanup(func() { s.must(s.direct.Close()) })
	return s
}

func (s *store) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// open makes a Backend with a client of its own, behind the relay.
func (s *store) open() *etcd.Backend {
	s.t.Helper()
	b, err := etcd.Open(&etcd.Settings{Endpoints: []string{s.relay.Addr()}}, etcd.Prefix(s.prefix))
	s.must(err)
	return b
}

// background is for requests that a cleanup makes, too, when the context of the test has ended.
func background() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 10*time.Second)
}

func (s *store) delete(key string) {
	ctx, cancel := background()
	defer cancel()
	_, err := s.direct.Delete(ctx, s.prefix+key+"/", clientv3.WithPrefix())
	s.must(err)
}

func (s *store) foreign(key string) (intact func() bool) {
	const text = "not a lock"
	ctx, cancel := background()
	defer cancel()
	name := s.prefix + key + "/data"
	_, err := s.direct.Put(ctx, name, text)
	s.must(err)
	return func() bool {
		ctx, cancel := background()
		defer cancel()
		resp, err := s.direct.Get(ctx, name)
		s.must(err)
		return len(resp.Kvs) == 1 && string(resp.Kvs[0].Value) == text
	}
}

// left lists the entries.
func (s *store) left() (left []string) {
	ctx, cancel := background()
	defer cancel()
	resp, err := s.direct.Get(ctx, s.prefix, clientv3.WithPrefix())
	s.must(err)
	for _, kv := range resp.Kvs {
		left = append(left, string(kv.Key))
	}
	return left
}
