package natslock_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/natslock"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is a server, with a connection of the test's own.
type store struct {
	*natstest.Server
	t     testing.TB
	js    jetstream.JetStream
	store *natslock.Backend // sees what the others store
}

func start(t testing.TB, args ...string) store {
	t.Helper()
	s := store{Server: natstest.Start(t, args...), t: t}
	s.js = s.connect(t)
	s.store = natslock.NewBackend(s.js)
	return s
}

func (s store) connect(t testing.TB) jetstream.JetStream {
	t.Helper()
	return connect(t, s.URL())
}

// connect makes a connection as a program would, with settings that make it find the server again soon.
func connect(t testing.TB, url string) jetstream.JetStream {
	t.Helper()
	conn, err := natsclient.Connect(url, natsclient.ReconnectWait(20*time.Millisecond), natsclient.MaxReconnects(-1),
		natsclient.ReconnectJitter(time.Millisecond, time.Millisecond),
		natsclient.ErrorHandler(func(*natsclient.Conn, *natsclient.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// stream returns the stream of the bucket, for looking behind the back of the backend.
func (s store) stream() jetstream.Stream {
	stream, err := s.js.Stream(context.Background(), "KV_"+natslock.DefaultBucket)
	if err != nil {
		s.t.Error(err)
	}
	return stream
}

func (s store) delete(key string) {
	err := s.stream().Purge(context.Background(), jetstream.WithPurgeSubject(s.store.Subject(key)))
	if err != nil {
		s.t.Error(err)
	}
}

func (s store) foreign(key string) (intact func() bool) {
	ctx := context.Background()
	if left := s.store.Left(ctx); len(left) > 0 { // creates the bucket
		s.t.Error(left)
	}
	value, subject := []byte("not a lock"), s.store.Subject(key)
	if _, err := s.js.Publish(ctx, subject, value); err != nil {
		s.t.Error(err)
	}
	return func() bool {
		m, err := s.stream().GetLastMsgForSubject(ctx, subject)
		return err == nil && bytes.Equal(m.Data, value)
	}
}

func (s store) conformance() conformance.Store {
	return conformance.Store{
		Open: func() backend.Backend { return natslock.NewBackend(s.connect(s.t)) },
		Hang: func() func() {
			s.Pause()
			return s.Resume
		},
		Delete:    s.delete,
		Foreign:   s.foreign,
		Down:      s.Down,
		LoseReply: s.LoseReply,
		Restart:   s.Restart,
		Left:      func() []string { return s.store.Left(context.Background()) },

		LoseMessages: func() (restore func()) { return s.LoseMessages("locker.") },
	}
}

var harness = conformance.Harness{
	MinTTL: time.Second, Granularity: time.Second,
	Store: func(t testing.TB) conformance.Store { return start(t).conformance() },
}

// The suites, on a server of its own for each property. Properties that need many TTLs take 20 s, because the shortest
// is a second, so go test -short runs the smaller suite.
func TestConformance(t *testing.T) {
	if testing.Short() {
		conformance.RunLocker(t, harness)
	} else {
		conformance.RunBackend(t, harness)
	}
}

// A writer acquires 64 locks at once, so these properties do not run beside the others.
func TestSemaphoresReadersAndWriters(t *testing.T) {
	conformance.RunSemaphore(t, harness)
	conformance.RunRWLock(t, harness)
}
