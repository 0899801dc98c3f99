package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/natslock"
)

func request(key, token string) backend.Request {
	return backend.Request{Key: key, Token: token, TTL: time.Minute}
}

// Different keys have different subjects, whose parts are what servers and key-value clients accept.
func TestKeysHaveSubjects(t *testing.T) {
	b := natslock.NewBackend(start(t).js, natslock.Bucket("b"), natslock.Prefix("p:"))
	seen := map[string]string{}
	for _, key := range []string{
		"a", "a.b", "a b", "a=b", "a=20b", "a/b", "*", ">", "ä", "\x00\xff", "=verify", "=s", strings.Repeat("x", 900),
		strings.Repeat("x", 1000), strings.Repeat("x", locker.MaxKey), strings.Repeat(".", 999), strings.Repeat(".", 998),
	} {
		subject := b.Subject(key)
		rest, ok := strings.CutPrefix(subject, "$KV.b.")
		readable := len(key) > 300 || strings.HasPrefix(rest, "p=3A")
		if !ok || !readable || strings.ContainsAny(rest, ".*> \x00") || len(subject) > 1100 {
			t.Errorf("the subject of %.20q is %.40q", key, subject)
		}
		if other, twice := seen[subject]; twice {
			t.Errorf("%.20q and %.20q have one subject", key, other)
		}
		seen[subject] = key
	}
}

// An attempt that arrives after its undoing is refused, and one that has arrived before is released. In both cases the
// lock is free.
func TestUndoIsForGood(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	b := natslock.NewBackend(s.js)
	for i, before := range []bool{false, true} {
		key := fmt.Sprint("k", i)
		last, err := b.PutFree(ctx, key, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		arrive := func() error { return b.PutHeld(ctx, key, last, "late") }
		if before {
			if err := arrive(); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Undo(ctx, key, last, "late"); err != nil {
			t.Fatalf("undo, with the attempt stored before it: %v: %v", before, err)
		}
		if err := arrive(); !errors.Is(err, natslock.ErrOther) {
			t.Errorf("the attempt after its undoing, stored before: %v: %v", before, err)
		}
		if _, err := s.store.Acquire(ctx, request(key, "next")); err != nil {
			t.Errorf("the next owner: %v", err)
		}
		if err := b.Undo(ctx, key, last, "late"); err != nil {
			t.Errorf("undo once more: %v", err)
		}
		if _, err := b.Acquire(ctx, request(key, "third")); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("after an undo that came late: %v, expected to find the next owner", err)
		}
	}
}

// meddler is a JetStream between which and a Backend a test meddles.
type meddler struct {
	jetstream.JetStream
	publish func(m *natsclient.Msg, send func() (*jetstream.PubAck, error)) (*jetstream.PubAck, error)
	read    func(subject string) error // an error is the answer to the read; nil: no read is changed
}

func (m meddler) PublishMsg(
	ctx context.Context, msg *natsclient.Msg, opts ...jetstream.PublishOpt,
) (*jetstream.PubAck, error) {
	return m.publish(msg, func() (*jetstream.PubAck, error) { return m.JetStream.PublishMsg(ctx, msg, opts...) })
}

func (m meddler) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	s, err := m.JetStream.Stream(ctx, name)
	return meddledStream{s, m.read}, err
}

type meddledStream struct {
	jetstream.Stream
	read func(subject string) error
}

func (m meddledStream) GetLastMsgForSubject(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	if m.read != nil {
		if err := m.read(subject); err != nil {
			return nil, err
		}
	}
	return m.Stream.GetLastMsgForSubject(ctx, subject)
}

// The server's refusals of changes whose conditions do not hold.
const (
	wrongSequence   jetstream.ErrorCode = 10071
	changing        jetstream.ErrorCode = 10164
	incompleteBatch jetstream.ErrorCode = 10176
)

func refusal(code jetstream.ErrorCode) error { return &jetstream.APIError{Code: 400, ErrorCode: code} }

func isLock(m *natsclient.Msg) bool { return m.Header.Get("Locker-State") == "held" }

// twice delivers each lock twice, or the end of each batch. The answer is to the second delivery.
func twice(m *natsclient.Msg, send func() (*jetstream.PubAck, error)) (*jetstream.PubAck, error) {
	ack, err := send()
	if err != nil || !isLock(m) {
		return ack, err
	}
	return send()
}

// A refusal does not prove that nothing was stored, because it may be about the second delivery of the same message. If
// the record cannot be read, the attempt is undone.
func TestRefusedAttemptsAreUndone(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	if _, err := s.store.PutFree(ctx, "before", 10*time.Second); err != nil { // creates the bucket
		t.Fatal(err)
	}
	next := locker.NewClient(natslock.NewBackend(s.js))
	defer next.Close()
	unread := func(code jetstream.ErrorCode) *natslock.Backend { // refuses each lock, and then to read it
		var fails atomic.Bool
		return natslock.NewBackend(meddler{
			JetStream: s.js,
			publish: func(m *natsclient.Msg, send func() (*jetstream.PubAck, error)) (*jetstream.PubAck, error) {
				if isLock(m) {
					fails.Store(true)
				}
				if code == 0 {
					return twice(m, send)
				}
				ack, err := send()
				if err == nil && isLock(m) {
					return nil, refusal(code)
				}
				return ack, err
			},
			read: func(string) error {
				if fails.Swap(false) {
					return errors.New("JetStream system temporarily unavailable")
				}
				return nil
			},
		})
	}
	for _, code := range []jetstream.ErrorCode{0, wrongSequence, changing} {
		key := func(name string) string { return fmt.Sprint(name, code) }
		// Backends of their own, because the clean-up of the first attempt reads, too.
		one, many := unread(code), unread(code)
		if _, err := one.Acquire(ctx, request(key("one"), "a")); !errors.Is(err, locker.ErrUnavailable) {
			t.Fatalf("one, refused with %d: %v", code, err)
		}
		two := []backend.Request{request(key("many"), "b"), request(key("more"), "c")}
		_, err := many.AcquireMany(ctx, two, backend.Choice{})
		if !errors.Is(err, locker.ErrUnavailable) {
			t.Fatalf("many, refused with %d: %v", code, err)
		}
		for _, name := range []string{"one", "many", "more"} {
			becomesFree(t, next, key(name))
		}
		for _, b := range []*natslock.Backend{one, many} {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// becomesFree checks that a lock can be acquired within half of what the lock of a request lasts.
func becomesFree(t *testing.T, next *locker.Client, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := next.Lock(ctx, key, locker.NoRenewal()); err != nil {
		t.Errorf("the next owner of %s: %v", key, err)
	}
}

// An acquisition never expects that there is no message, because that state comes again: a late duplicate would then be
// stored after the lock was released.
func TestAcquireExpectsANumber(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	if _, err := s.store.Acquire(ctx, request("k", "a")); err != nil {
		t.Fatal(err)
	}
	m, err := s.stream().GetLastMsgForSubject(ctx, s.store.Subject("k"))
	if err != nil {
		t.Fatal(err)
	}
	if last := m.Header.Get(jetstream.ExpectedLastSubjSeqHeader); last == "" || last == "0" {
		t.Errorf("the lock was stored on the condition that the last number is %q", last)
	}
}

// A bucket that somebody has made with settings that endanger locks is refused, with the setting.
func TestBucketsThatDoNotFit(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	good := func(name string) jetstream.StreamConfig {
		subjects := "$KV." + name + ".>"
		return jetstream.StreamConfig{
			Name: "KV_" + name, Subjects: []string{subjects}, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew,
			AllowMsgTTL: true, FirstSeq: natslock.FirstSeq(time.Now()),
			RePublish: &jetstream.RePublish{Source: subjects, Destination: "locker.v2." + name + ".>", HeadersOnly: true},
		}
	}
	n := 0
	for want, change := range map[string]func(c *jetstream.StreamConfig){
		"":                          func(*jetstream.StreamConfig) {},
		"max_msgs_per_subject":      func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 },
		"allow_msg_ttl":             func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false },
		"no_ack":                    func(c *jetstream.StreamConfig) { c.NoAck = true },
		"discard_new_per_subject":   func(c *jetstream.StreamConfig) { c.DiscardNewPerSubject = true },
		"max_msg_size":              func(c *jetstream.StreamConfig) { c.MaxMsgSize = 100 },
		"set subjects":              func(c *jetstream.StreamConfig) { c.Subjects[0] = "$KV." + c.Name[len("KV_"):] + ".a" },
		"max_age":                   func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"discard":                   func(c *jetstream.StreamConfig) { c.Discard, c.MaxMsgs = jetstream.DiscardOld, 100 },
		"subject_delete_marker_ttl": func(c *jetstream.StreamConfig) { c.SubjectDeleteMarkerTTL = time.Minute },
		"retention":                 func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
		"storage":                   func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"persist_mode":              func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode },
		"sources": func(c *jetstream.StreamConfig) {
			c.Sources = []*jetstream.StreamSource{{Name: "OTHER"}}
		},
		"subject_transform": func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: c.Subjects[0], Destination: "$KV.moved.>"}
		},
		"allow_direct": func(c *jetstream.StreamConfig) { c.AllowDirect = true },
		"republish":    func(c *jetstream.StreamConfig) { c.RePublish = nil },
		"its format is v1, and that of this program is v2": func(c *jetstream.StreamConfig) {
			c.RePublish.Destination = strings.Replace(c.RePublish.Destination, "v2.", "", 1)
		},
		"its format is v3, and that of this program is v2": func(c *jetstream.StreamConfig) {
			c.RePublish.Destination = strings.Replace(c.RePublish.Destination, "v2", "v3", 1)
		},
	} {
		n++
		name := fmt.Sprint("fit", n) // the files of a bucket that was deleted may be there for a while
		c := good(name)
		change(&c)
		if want == "subject_delete_marker_ttl" {
			c.AllowRollup = true // the server asks for it
		}
		if _, err := s.js.CreateStream(ctx, c); err != nil {
			t.Fatalf("%s: %v", want, err)
		}
		_, err := natslock.NewBackend(s.js, natslock.Bucket(name)).Acquire(ctx, request("k", "a"))
		if want == "" && err != nil || want != "" && (!errors.Is(err, locker.ErrUnavailable) ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("a bucket with a wrong %q: %v", want, err)
		}
	}
}

// Tokens grow if a bucket is deleted and made again, because its first number is the time of its creation. A bucket
// that was made with another number is refused: with none, with one of a file that is used again, and with one in the
// future.
func TestBucketsWhoseTokensCouldFall(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	for n, off := range []time.Duration{0, -30 * 24 * time.Hour, 400 * 24 * time.Hour, -time.Minute, time.Minute} {
		c := natslock.StreamConfig()
		c.Name, c.Subjects = fmt.Sprint("KV_first", n), []string{fmt.Sprint("$KV.first", n, ".>")}
		c.RePublish.Source, c.RePublish.Destination = c.Subjects[0], fmt.Sprint("locker.v2.first", n, ".>")
		c.FirstSeq = natslock.FirstSeq(time.Now().Add(off))
		if off == 0 {
			c.FirstSeq = 0
		}
		if _, err := s.js.CreateStream(ctx, c); err != nil {
			t.Fatal(err)
		}
		_, err := natslock.NewBackend(s.js, natslock.Bucket(fmt.Sprint("first", n))).Acquire(ctx, request("k", "a"))
		fits := off.Abs() == time.Minute
		if fits && err != nil || !fits && (err == nil || !strings.Contains(err.Error(), "first_seq")) {
			t.Errorf("a bucket whose first number is off by %v: %v", off, err)
		}
	}
}

// A number of replicas that NATS cannot have is the mistake of the caller.
func TestNumbersOfReplicasThatNATSHasNot(t *testing.T) {
	s := start(t)
	for _, n := range []int{-1, 6} {
		_, err := natslock.NewBackend(s.js, natslock.Replicas(n)).Acquire(t.Context(), request("k", "a"))
		if !errors.Is(err, locker.ErrInvalid) {
			t.Errorf("Replicas(%d): %v", n, err)
		}
	}
}

// A program that asks for more replicas than an existing bucket has is told so, and one that asks for fewer is not.
func TestBucketsWithTooFewReplicas(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	if _, err := s.store.Acquire(ctx, request("k", "a")); err != nil { // creates the bucket
		t.Fatal(err)
	}
	_, err := natslock.NewBackend(s.js, natslock.Replicas(3)).Acquire(ctx, request("l", "a"))
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "num_replicas") {
		t.Errorf("three replicas of a bucket with one: %v", err)
	}
}

// A Backend that was closed accepts no listeners, whose goroutine nobody would end: goleak would see it.
func TestNobodyListensToAClosedBackend(t *testing.T) {
	t.Parallel()
	b := natslock.NewBackend(start(t).js)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	live, stop := b.Notify("k", func() {})
	defer stop()
	if live() {
		t.Error("Notify of a Backend that was closed says that messages are received")
	}
	if _, err := b.Watch("k", func() {}); !errors.Is(err, locker.ErrClosed) {
		t.Errorf("Watch of a Backend that was closed: %v", err)
	}
}

// Tokens grow although the bucket was deleted, and the Client finds the new one.
func TestBucketIsDeleted(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	l := natslock.New(s.js)
	defer l.Close()
	last := uint64(0)
	for range 3 {
		lease, err := l.TryLock(ctx, "k")
		for errors.Is(err, locker.ErrUnavailable) { // the first call finds that the bucket is missing
			lease, err = l.TryLock(ctx, "k")
		}
		if err != nil {
			t.Fatal(err)
		}
		if lease.Fence() <= last {
			t.Errorf("token %d after %d", lease.Fence(), last)
		}
		last = lease.Fence()
		if err := s.js.DeleteStream(context.WithoutCancel(ctx), "KV_locker"); err != nil {
			t.Fatal(err)
		}
		if err := lease.Unlock(ctx); err == nil {
			t.Error("Unlock of a lock in a bucket that was deleted: no error")
		}
	}
}

// A function that watches a lock may use the Backend: it is called without a mutex.
func TestWatchingFunctionsMayUseTheBackend(t *testing.T) {
	s := start(t)
	l := natslock.New(s.js)
	t.Cleanup(func() { _ = l.Close() })
	called := make(chan struct{}, 100)
	stop, err := l.Watch("k", func() {
		stop, err := l.Watch("other", func() {})
		if err == nil {
			stop()
		}
		called <- struct{}{}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	lease, err := l.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case <-called:
	case <-time.After(20 * time.Second):
		t.Fatal("a function that watches a lock hangs")
	}
}
