package etcdlock_test

import (
	"context"
	"fmt"
	"path"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/etcdtest"
	_ "github.com/golocker/locker/internal/testing/short" // make test-long runs the packages that import it in full
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// alone lists the properties that stop or kill their store. Each has a member of its own, and the others share one.
var alone = []string{
	"LatencyCounts", "HungStoreIsBounded", "FenceIsUnique", "FenceSurvivesRestart", "ContextEndIsPrompt",
	"NoAnswerIsUnavailable",
}

// TestConformance runs the suites on real members. With -short it leaves out what a Client hides, most of which waits
// for many TTLs of a second.
func TestConformance(t *testing.T) {
	run := conformance.RunBackend
	if testing.Short() {
		run = conformance.RunLocker
	}
	shared := etcdtest.Start(t)
	h := conformance.Harness{
		MinTTL: time.Second, Granularity: time.Second,
		Store: func(t testing.TB) conformance.Store {
			m := shared
			if slices.Contains(alone, path.Base(t.Name())) {
				m = etcdtest.Start(t)
			}
			s := newStore(t, m)
			return conformance.Store{
				Open:   func() backend.Backend { return s.open() },
				Delete: s.delete, Foreign: s.foreign, Left: s.left,
				Hang: func() (resume func()) {
					s.private(shared).Pause()
					return m.Resume
				},
				Down:      s.relay.Down,
				LoseReply: func() { s.relay.Lose(1) },
				Restart:   func() { s.private(shared).Restart() },
			}
		},
	}
	run(t, h)
	conformance.RunSemaphore(t, h)
	conformance.RunRWLock(t, h)
}

// store is a part of an etcd of one member, behind a relay.
type store struct {
	t      testing.TB
	member *etcdtest.Member
	relay  *etcdtest.Relay
	prefix string
	direct *clientv3.Client // not through the relay
}

var stores atomic.Int32

func newStore(t testing.TB, m *etcdtest.Member) *store {
	t.Helper()
	s := &store{t: t, member: m, prefix: fmt.Sprintf("p%d/", stores.Add(1))}
	s.relay = etcdtest.NewRelay(t, m.Addr())
	s.direct = connect(t, clientv3.Config{Endpoints: []string{"http://" + m.Addr()}})
	return s
}

// connect makes a client of etcd, which is closed with the test.
func connect(t testing.TB, config clientv3.Config) *clientv3.Client {
	t.Helper()
	config.Logger = zap.NewNop()
	client, err := clientv3.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

// private returns the member, which must not be the shared one.
func (s *store) private(shared *etcdtest.Member) *etcdtest.Member {
	s.t.Helper()
	if s.member == shared {
		s.t.Fatal("this property stops or kills its store: name it in alone")
	}
	return s.member
}

func (s *store) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// open makes a Backend with a client of its own, behind the relay.
func (s *store) open() *etcdlock.Backend {
	s.t.Helper()
	b, err := etcdlock.Open(&etcdlock.Config{Endpoints: []string{s.relay.Addr()}}, etcdlock.Prefix(s.prefix))
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

// left lists the entries. The record of the tokens stays.
func (s *store) left() (left []string) {
	ctx, cancel := background()
	defer cancel()
	resp, err := s.direct.Get(ctx, s.prefix, clientv3.WithPrefix())
	s.must(err)
	for _, kv := range resp.Kvs {
		if string(kv.Key) != s.prefix+etcdlock.TokensKey {
			left = append(left, string(kv.Key))
		}
	}
	return left
}
