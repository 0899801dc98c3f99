// Package nats keeps locks in NATS JetStream, in a key-value bucket. It needs nats-server 2.11 or later.
//
//	nc, err := nats.Connect("nats://localhost:4222")
//	js, err := jetstream.New(nc)
//	l := locknats.New(js)
//
// # What it promises
//
// While the server, or a majority of the servers of a bucket with replicas, keeps its data, a lock has at most one
// holder at a time, provided that the clocks of the servers agree, run at the right speed and do not jump, and that
// those of the clients run at the same speed. All changes go through the leader of the bucket's stream, and each is a
// compare and set. Every acquisition gets a fencing token greater than all earlier ones: the sequence number of the
// message that recorded it. The tokens need no clock.
//
// A server writes to its disk before it answers, but by default it leaves to the kernel when the disk is synced. After
// a crash of the machine, a server can have lost its latest writes, with locks and tokens among them. Set
// "sync_interval: always" in the section jetstream of its configuration, or use three replicas on machines that do not
// fail at the same time.
//
// # TTL
//
// JetStream counts the TTL of a message in whole seconds. So a TTL is rounded up, and the server ends the lock of a
// holder that has crashed up to 1.4 s after that. Waiters do not wait for the server: they count the TTL from when they
// learned of the holder's last renewal, and take the lock if there was no other one since.
//
// # Waiting
//
// There is no queue. All waiting Clients learn of a release at once, and the first whose request arrives gets the lock.
// The callers of one Client wait in the order of their arrival. Waiters also look once or twice in two seconds, because
// a message may be lost, and when the TTL of the holder is over.
package nats

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
)

const (
	// DefaultBucket is the name of the bucket unless [Bucket] says otherwise.
	DefaultBucket = "locker"

	// DefaultPrefix is put before every key unless [Prefix] says otherwise.
	DefaultPrefix = "lock:"
)

// Option changes what [New] builds.
type Option func(*options)

type options struct {
	name     string
	prefix   string
	replicas int
	timeout  time.Duration

	// Of a Backend that has made its connection itself; see renew. Otherwise both are nil.
	dial  func() (jetstream.JetStream, error)
	login *loginFault
}

// Bucket sets the name of the key-value bucket, of letters, digits, _ and -. Programs that should exclude each other
// need the same one. It is for locks only: the backend creates it with settings that other uses may not like.
func Bucket(name string) Option { return func(o *options) { o.name = name } }

// Prefix sets what is put before every key, to keep locks apart. The default is [DefaultPrefix]. Programs that should
// exclude each other need the same prefix.
func Prefix(p string) Option { return func(o *options) { o.prefix = p } }

// Replicas sets how many servers of a cluster keep the bucket, 1 to 5, when the backend creates it. With 3, the locks
// survive the loss of one server. The default is 1. A bucket that exists stays as it is, and is refused if fewer
// servers keep it.
func Replicas(n int) Option { return func(o *options) { o.replicas = n } }

// Timeout bounds one exchange with the server. A call that takes longer fails with locker.ErrUnavailable. The TTL
// bounds an acquisition as well. Zero means the default, 5 s.
func Timeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

const defaultTimeout = 5 * time.Second

// New returns a Client that keeps its locks in the JetStream behind js. It sends nothing: the first call that needs
// the bucket creates it if it does not exist. Closing the Client does not close the connection of js.
func New(js jetstream.JetStream, opts ...Option) *locker.Client {
	return locker.NewClient(NewBackend(js, opts...))
}

// Backend implements [locker.Backend] and its optional interfaces locker.Notifier, locker.Verifier and
// locker.ManyAcquirer, and inspect.Inspector, inspect.Watcher and inspect.Examiner.
type Backend struct {
	options
	js     atomic.Pointer[jetstream.JetStream] // see jet
	api    string                              // see publishPrefix
	bucket atomic.Pointer[bucket]              // nil until it was found to exist
	opens  chan struct{}                       // has a value while a call looks for the bucket
	hints  hints
	news   news
	reach  reach

	closing chan struct{}
	mu      sync.Mutex
	closed  bool
	jobs    []job // the clean-ups that are due; a goroutine runs while there are any
	renews  bool  // a goroutine makes another connection
	working sync.WaitGroup
}

// NewBackend returns a Backend of the JetStream behind js, as New does.
func NewBackend(js jetstream.JetStream, opts ...Option) *Backend {
	o := options{name: DefaultBucket, prefix: DefaultPrefix, replicas: 1}
	for _, opt := range opts {
		opt(&o)
	}
	if o.timeout <= 0 {
		o.timeout = defaultTimeout
	}
	b := &Backend{options: o, api: publishPrefix(js.Options()), opens: make(chan struct{}, 1),
		closing: make(chan struct{})}
	b.js.Store(&js)
	b.news.conn, b.news.moved = js.Conn(), make(chan struct{}, 1)
	return b
}

// jet returns the JetStream that is in use.
func (b *Backend) jet() jetstream.JetStream { return *b.js.Load() }

// renew makes another connection in the background, if the Backend has made its connection itself. It is for one that
// is closed for good: the client library closes it when the server sends an error that the library does not know, as
// for a line that is too long.
func (b *Backend) renew() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dial == nil || b.closed || b.renews || !b.jet().Conn().IsClosed() {
		return
	}
	b.renews = true
	b.working.Go(func() {
		js, err := b.dial()
		if err == nil {
			b.js.Store(&js)
			b.bucket.Store(nil)
			b.news.move(js.Conn())
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.renews = false // after an error, the next call tries again
	})
}

// bounded returns ctx with the timeout of one call.
func (b *Backend) bounded(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(b.timeout, most))
}

// Close ends the waiting of clean-ups, each of which gets one more try. It closes the connection only if the Backend
// was made from a configuration.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	close(b.closing)
	b.working.Wait()
	b.news.close()
	if b.dial != nil {
		b.jet().Conn().Close()
	}
	return nil
}

// usable returns an error if the Backend was closed.
func (b *Backend) usable() error {
	select {
	case <-b.closing:
		return locker.ErrClosed
	default:
		return nil
	}
}

func unavailable(err error) error { return fmt.Errorf("%w: %w", locker.ErrUnavailable, err) }
