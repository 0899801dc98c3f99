// Package natslock keeps locks in NATS JetStream, in a key-value bucket. It needs nats-server 2.11 or later.
//
//	nc, err := nats.Connect("nats://localhost:4222")
//	js, err := jetstream.New(nc)
//	l := natslock.New(js)
//
// # What it promises
//
// While the server, or a majority of the servers of a bucket with replicas, keeps its data, a lock has at most one
// holder at a time, provided that the clocks of the servers agree, run at the right speed and do not jump, and that
// those of the clients run at the same speed. All changes go through the leader of the bucket's stream, and each is a
// compare and set. Every acquisition gets fencing tokens greater than all earlier ones: each sequence number owns 128
// of them, and a lock has those of the message that recorded it. The tokens need no clock but that of the bucket's
// creation.
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
package natslock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backend/cleanup"
	"github.com/golocker/locker/inspect"
)

const (
	// DefaultBucket is the name of the bucket unless [Bucket] says otherwise.
	DefaultBucket = "locker"

	// DefaultPrefix is put before every key unless [Prefix] says otherwise.
	DefaultPrefix = "lock:"

	// DefaultTimeout bounds an exchange unless [Timeout] says otherwise.
	DefaultTimeout = 5 * time.Second
)

// Option changes what [New] builds.
type Option func(*options)

type options struct {
	name     string
	prefix   string
	replicas int
	timeout  time.Duration

	// Of a backend that has made its connection itself; see renew. Otherwise both are nil.
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
// bounds an acquisition as well. Zero means the default, [DefaultTimeout].
func Timeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// New returns a Client that keeps its locks in the JetStream behind js. It sends nothing: the first call that needs
// the bucket creates it if it does not exist. Closing the Client does not close the connection of js.
func New(js jetstream.JetStream, opts ...Option) *locker.Client {
	return locker.NewClient(newBackend(js, opts...))
}

// backend implements [backend.Backend] and its optional interfaces backend.Notifier, backend.Verifier and
// backend.ManyAcquirer, and inspect.Inspector, inspect.Lister, inspect.Watcher, inspect.Examiner and
// inspect.FenceRaiser.
type store struct {
	options
	js     atomic.Pointer[jetstream.JetStream] // see jet
	api    string                              // see publishPrefix
	bucket atomic.Pointer[bucket]              // nil until it was found to exist
	opens  chan struct{}                       // has a value while a call looks for the bucket
	hints  hints
	news   news
	reach  reach

	chores  cleanup.Queue
	closing chan struct{}
	mu      sync.Mutex
	closed  bool
	renews  bool // a goroutine makes another connection
	working sync.WaitGroup
}

// newBackend returns what [New] makes a Client of.
func newBackend(js jetstream.JetStream, opts ...Option) *store {
	o := options{name: DefaultBucket, prefix: DefaultPrefix, replicas: 1}
	for _, opt := range opts {
		opt(&o)
	}
	if o.timeout <= 0 {
		o.timeout = DefaultTimeout
	}
	b := &store{
		options: o, api: publishPrefix(js.Options()), opens: make(chan struct{}, 1), closing: make(chan struct{}),
		// When a connection is lost, the client library does not say so to requests that wait for an answer.
		chores: cleanup.Queue{Timeout: min(o.timeout, time.Second)},
	}
	b.js.Store(&js)
	b.news.conn, b.news.moved = js.Conn(), make(chan struct{}, 1)
	return b
}

// bounded returns ctx with the timeout of one call.
func (b *store) bounded(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(b.timeout, most))
}

// closeGrace is how long Close waits for clean-ups.
const closeGrace = 250 * time.Millisecond

// Close gives each clean-up one more try, for a moment. It closes the connection only if the backend was made from a
// configuration.
func (b *store) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	close(b.closing)
	b.chores.Close(closeGrace)
	b.working.Wait()
	b.news.close()
	if b.dial != nil {
		b.jet().Conn().Close()
	}
	return nil
}

// usable returns an error if the backend was closed.
func (b *store) usable() error {
	select {
	case <-b.closing:
		return locker.ErrClosed
	default:
		return nil
	}
}

func unavailable(err error) error { return fmt.Errorf("%w: %w", locker.ErrUnavailable, err) }

// Acquire implements [backend.Backend].
//
// A lock is only ever written over a record of a known sequence number: a free one, which is written first if there is
// none, or one whose time is over, see sighting. The store itself has given that number to this backend, in the answer
// to a read or to a write. A number that a message of the news has is never used, because others may send such
// messages.
//
// So an attempt whose outcome is unknown can be undone for good: either it is stored, or the clean-up overwrites that
// record, and the attempt can never be stored any more, however late it arrives. See [store.undo].
//
// While the servers of a cluster connect to each other anew, a message may arrive twice. The refusal of the second one
// may then be the answer, although the first one is stored. So a refusal proves nothing until a newer record is seen.
func (b *store) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := b.usable(); err != nil {
		return backend.Grant{}, err
	}
	if err := b.chores.Backlog(); err != nil {
		return backend.Grant{}, unavailable(err)
	}
	ctx, cancel := b.bounded(ctx, req.TTL)
	defer cancel()
	subject, start := b.subject(req.Key), time.Now()
	lock := record{State: held, Owner: req.Token, Label: req.Label, ttl: req.TTL}
	last := b.hints.get(subject)
	// Somebody waits here, so there is a record, most likely: read it first.
	look := last == 0 && b.news.waited(b.toldOf(subject))
	var doubt uint64 // the record over which the lock may have been written; 0: there is none
	defer func() {
		if doubt != 0 {
			b.undoLater(req, doubt, start)
		}
	}()
	for n := 0; ; n++ {
		var err error
		if last == 0 && !look {
			last, err = b.put(ctx, subject, 0, record{State: free, ttl: freeFor})
		}
		if err == nil && !look {
			var seq uint64
			seq, err = b.put(ctx, subject, last, lock)
			switch {
			case err == nil:
				doubt = 0
				return grant(firstToken(seq), seq, start, req), nil
			case errors.Is(err, errOther) || errors.As(err, new(unknown)):
				doubt = max(doubt, last) // a smaller number is that of an old record, which nothing is written over
			}
		}
		if err != nil && !errors.Is(err, errOther) {
			return backend.Grant{}, err
		}
		r, err := b.get(ctx, subject)
		if err == nil && r.seq > doubt {
			doubt = 0
		}
		switch {
		case err != nil:
			return backend.Grant{}, err
		case r.State == foreign:
			return backend.Grant{}, locker.ErrForeignKey
		case r.State == held && r.Owner == req.Token: // the same request was executed before
			return grant(r.token(), r.seq, start, req), nil
		case r.taken() && !r.overdue:
			return backend.Grant{}, r.heldError()
		}
		last = r.seq
		if look {
			look, n = false, -1
		} else if err := pause(ctx, n); err != nil {
			return backend.Grant{}, err
		}
	}
}

// pause waits before a change is tried again, the n-th time. The first time it does not wait.
func pause(ctx context.Context, n int) error {
	if n == 0 {
		return ctxError(ctx)
	}
	t := time.NewTimer(min(time.Millisecond<<min(n, 10), 50*time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctxError(ctx)
	}
}

func ctxError(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// later repeats chore in the background, while the server does not answer.
func (b *store) later(until time.Time, chore func(ctx context.Context) error) {
	b.chores.Repeat(until, func(ctx context.Context) error {
		if err := chore(ctx); errors.Is(err, locker.ErrUnavailable) {
			return err
		}
		return nil
	})
}

// undoLater undoes, in the background, an attempt that began at start and whose outcome is unknown.
func (b *store) undoLater(req backend.Request, last uint64, start time.Time) {
	b.later(start.Add(req.TTL+freeFor+b.timeout), func(ctx context.Context) error {
		return b.undo(ctx, b.subject(req.Key), last, req.Token)
	})
}

// undo makes sure that an attempt of token to write over the record last, which was free or overdue, has no effect, now
// or later. A nil error means that this is so.
func (b *store) undo(ctx context.Context, subject string, last uint64, token string) error {
	unlocked := record{State: free, Owner: token, ttl: freeFor}
	for n := 0; ; n++ {
		_, err := b.put(ctx, subject, last, unlocked)
		if !errors.Is(err, errOther) {
			return err
		}
		r, err := b.settled(ctx, subject, last)
		switch {
		case errors.Is(err, errOther):
		case err != nil:
			return err
		case r.State == held && r.Owner == token:
			last = r.seq // of the attempt, which is now released
		case r.seq != last:
			return nil // the attempt can never be stored now
		}
		if err := pause(ctx, n); err != nil {
			return err
		}
	}
}

// holding is what the backend knows about a lock that it has granted. It is the Private of the Grant.
type holding struct {
	mu       sync.Mutex
	seq      uint64    // of the last record that is known to be the owner's
	since    time.Time // when the lock was asked for
	ends     time.Time // the latest end of a TTL that was asked for
	released bool      // a release was sent and not answered
}

func grant(token, seq uint64, start time.Time, req backend.Request) backend.Grant {
	return backend.Grant{
		Fence: token, Fences: req.Fences, Private: &holding{seq: seq, since: start, ends: start.Add(req.TTL)},
	}
}

// holdingOf returns the holding of a request. One of a caller that has lost it has no sequence number, and the record
// is read first.
func holdingOf(req backend.Request) *holding {
	if h, ok := req.Private.(*holding); ok {
		return h
	}
	return &holding{since: time.Now()}
}

// last returns the sequence number of the owner's last record.
func (h *holding) last() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seq
}

func (h *holding) saw(seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq = max(h.seq, seq)
}

// asks notes, before it is asked for, that the lock is to last until ends. Another extension of the same lock, which
// writes over the record of this one, must not shorten it, although this one's answer may not have come yet.
func (h *holding) asks(ends time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ends.After(h.ends) {
		h.ends = ends
	}
}

func (h *holding) end() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ends
}

// change calls write, which changes the store on the condition that the last record of the lock is still the one with
// the number that it gets, the owner's. write returns the number of the owner's record after that, or the same one if
// it has stored none. If the condition does not hold, change reads the record, and tries again if it is the owner's.
func (b *store) change(ctx context.Context, req backend.Request, write func(last uint64) (uint64, error)) error {
	h, subject := holdingOf(req), b.subject(req.Key)
	last := h.last()
	for n := 0; ; n++ {
		if last != 0 {
			seq, err := write(last)
			if err == nil {
				h.saw(seq)
				return nil
			}
			if !errors.Is(err, errOther) {
				return err
			}
		}
		r, err := b.settled(ctx, subject, last)
		switch {
		case errors.Is(err, errOther):
			if err := pause(ctx, n); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case r.State == held && r.Owner != req.Token, r.State == kept && r.Owner != req.Token, r.State == foreign:
			return &locker.NotHeldError{Reason: locker.LostTakenOver}
		case r.State != held && r.Owner == req.Token && h.gone():
			return errDone
		case r.State != held:
			return locker.ErrNotHeld
		}
		last = r.seq // an earlier extension was stored, and its answer was lost
		if err := pause(ctx, n); err != nil {
			return err
		}
	}
}

// errDone means that an earlier release, whose answer was lost, has released the lock.
var errDone = errors.New("released before")

// gone reports whether a release was sent that was not answered.
func (h *holding) gone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.released
}

// Extend implements [backend.Backend].
func (b *store) Extend(ctx context.Context, req backend.Request) error {
	if err := b.usable(); err != nil {
		return err
	}
	ctx, cancel := b.bounded(ctx, req.TTL)
	defer cancel()
	h, subject := holdingOf(req), b.subject(req.Key)
	now := time.Now()
	h.asks(now.Add(req.TTL))
	next := record{
		State: extended, Owner: req.Token, Label: req.Label, Fence: req.Fence, Age: now.Sub(h.since).Milliseconds(),
	}
	err := b.change(ctx, req, func(last uint64) (uint64, error) {
		next.ttl = h.end().Sub(now)
		return b.put(ctx, subject, last, next)
	})
	if errors.Is(err, errDone) {
		return locker.ErrNotHeld
	}
	return err
}

// Release implements [backend.Backend].
func (b *store) Release(ctx context.Context, req backend.Request) error {
	if err := b.usable(); err != nil {
		return err
	}
	bounded, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	err := b.release(bounded, req, time.Now().Add(req.Keep))
	if errors.Is(err, locker.ErrUnavailable) {
		keepUntil := time.Now().Add(req.Keep)
		b.later(time.Now().Add(max(req.TTL, req.Keep)+time.Second), func(ctx context.Context) error {
			return b.release(ctx, req, keepUntil)
		})
	}
	return err
}

// release releases the lock. It stays taken until keepUntil, if req asks for that.
func (b *store) release(ctx context.Context, req backend.Request, keepUntil time.Time) error {
	h, subject := holdingOf(req), b.subject(req.Key)
	err := b.change(ctx, req, func(last uint64) (uint64, error) {
		next := record{State: free, Owner: req.Token, ttl: freeFor}
		if rest := time.Until(keepUntil); req.Keep > 0 && rest > 0 {
			next = record{State: kept, Owner: req.Token, Fence: req.Fence, ttl: rest}
		}
		seq, err := b.put(ctx, subject, last, next)
		switch {
		case err == nil && next.State == free:
			b.hints.put(subject, seq)
		case errors.As(err, new(unknown)):
			h.mu.Lock()
			h.released = true
			h.mu.Unlock()
		}
		return last, err // the new record is not the owner's, who must not replace it
	})
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

// Verify implements [backend.Verifier].
//
// A read would prove nothing: a leader that was cut off from its followers may answer reads for a while, although
// another one has been elected. So Verify writes. It stores a message beside the locks, on the condition that the
// lock's last record is the owner's. Only a leader that has a majority can store it.
func (b *store) Verify(ctx context.Context, req backend.Request) error {
	if err := b.usable(); err != nil {
		return err
	}
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	subject := b.subject(req.Key)
	err := b.change(ctx, req, func(last uint64) (uint64, error) {
		m := natsclient.NewMsg(b.subjects() + probeKey)
		m.Header.Set(jetstream.MsgTTLHeader, strconv.FormatInt(seconds(time.Second), 10))
		m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
		m.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, subject)
		_, err := b.publish(ctx, m)
		return last, err
	})
	if errors.Is(err, errDone) {
		return locker.ErrNotHeld
	}
	return err
}

// Inspect implements [inspect.Inspector]. Remaining and Held compare the clock of this machine with that of the server.
func (b *store) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	if err := b.usable(); err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	r, err := b.get(ctx, b.subject(key))
	if err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	return r.inspection(), nil
}

// ForceRelease implements [inspect.Inspector].
func (b *store) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	if err := b.usable(); err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	subject := b.subject(key)
	first := ""
	for n := 0; ; n++ {
		r, err := b.get(ctx, subject)
		if err != nil {
			return inspect.Inspection{State: inspect.Unknown}, err
		}
		i := r.inspection()
		switch {
		case r.State == foreign:
			return i, locker.ErrForeignKey
		case !r.taken() || !strings.HasPrefix(r.Owner, owner) || r.State == kept && owner != "":
			return i, locker.ErrNotHeld
		case n > 0 && r.Owner != first: // the lock has changed hands: the new owner keeps it
			return i, locker.ErrNotHeld
		}
		first = r.Owner
		_, err = b.put(ctx, subject, r.seq, record{State: free, ttl: freeFor})
		if !errors.Is(err, errOther) {
			return i, err
		}
		if err := pause(ctx, n); err != nil {
			return i, err
		}
	}
}

// RaiseFences implements inspect.FenceRaiser. A token comes from the sequence number of the message that records a
// lock. The server raises that by one with each message, and otherwise only if it removes all messages, and so all
// locks. So tokens that are not past yet are not raised, and the error matches errors.ErrUnsupported.
func (b *store) RaiseFences(ctx context.Context, past uint64) error {
	if err := b.usable(); err != nil {
		return err
	}
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	m := natsclient.NewMsg(b.subjects() + probeKey)
	m.Header.Set(jetstream.MsgTTLHeader, strconv.FormatInt(seconds(time.Second), 10))
	seq, err := b.publish(ctx, m) // only a leader with a majority can store it; grants after it have greater numbers
	if err != nil || firstToken(seq+1) > past {
		return err
	}
	return fmt.Errorf("%w: tokens of NATS cannot be raised while there are locks: use a new bucket, whose tokens begin "+
		"at the clock, or while nobody uses bucket %s, nats stream purge KV_%s --seq=%d",
		errors.ErrUnsupported, b.name, b.name, past/backend.MaxFences+1)
}

// Notify implements [backend.Notifier].
func (b *store) Notify(key string, wake func()) (live func() bool, stop func()) {
	var confirmed atomic.Bool
	stop, err := b.news.listen(b.toldOf(b.subject(key)), func(s state) {
		if s == reconnected {
			confirmed.Store(true)
		}
		if s == free || s == reconnected || s == overdue {
			wake()
		}
	}, func() {
		confirmed.Store(true)
		wake()
	})
	if err != nil {
		return func() bool { return false }, func() {}
	}
	return func() bool { return confirmed.Load() && b.isConnected() }, stop
}

// Watch implements inspect.Watcher.
func (b *store) Watch(key string, changed func()) (stop func(), err error) {
	return b.news.listen(b.toldOf(b.subject(key)), func(s state) {
		if s != extended && s != overdue {
			changed()
		}
	}, nil)
}
