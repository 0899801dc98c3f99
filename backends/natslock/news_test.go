package natslock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/natslock"
	"github.com/golocker/locker/internal/testing/contention"
)

// soon is the TTL of records of holders that have died, for tests that wait for its end. The server keeps these records
// for keeps, so that only a waiter can end them.
const (
	soon  = 100 * time.Millisecond
	keeps = time.Minute
)

// record stores a record of the owner "dead" that relies on it for ttl, over the record last, and returns its number.
func (s store) record(key, state string, ttl time.Duration, last uint64) uint64 {
	s.t.Helper()
	return s.recordWith(rand.Text(), key, state, ttl, last)
}

// recordWith is record with a nonce that the test chooses.
func (s store) recordWith(nonce, key, state string, ttl time.Duration, last uint64) uint64 {
	s.t.Helper()
	m := natsclient.NewMsg(s.store.Subject(key))
	m.Data = []byte(`{"owner":"dead"}`)
	m.Header.Set("Locker-State", state)
	m.Header.Set("Locker-Nonce", nonce)
	if ttl > 0 {
		m.Header.Set("Locker-TTL", strconv.FormatInt(ttl.Milliseconds(), 10))
		m.Header.Set("Nats-TTL", strconv.Itoa(int(keeps/time.Second)))
	}
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
	ack, err := s.js.PublishMsg(context.Background(), m)
	if err != nil {
		s.t.Error(err)
		return 0
	}
	return ack.Sequence
}

// waiter is a Backend that waits for a lock.
type waiter struct {
	*natslock.Backend
	t     testing.TB
	key   string
	woken chan struct{}
}

// waits returns when b is told of changes of key. b is closed when the test ends.
func waits(t testing.TB, b *natslock.Backend, key string) waiter {
	t.Helper()
	w := waiter{b, t, key, make(chan struct{}, 100)}
	_, stop := b.Notify(key, func() { w.woken <- struct{}{} })
	t.Cleanup(func() {
		stop()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	w.wakes()
	return w
}

// wakes returns when the waiter is woken.
func (w waiter) wakes() {
	w.t.Helper()
	select {
	case <-w.woken:
	case <-time.After(keeps / 2):
		w.t.Fatalf("the waiter for %s is not woken", w.key)
	}
}

// finds makes an attempt that fails with want.
func (w waiter) finds(want error, what string) {
	w.t.Helper()
	if _, err := w.Acquire(w.t.Context(), request(w.key, "next")); !errors.Is(err, want) {
		w.t.Errorf("%s: %v, expected that the lock is %v", what, err, want)
	}
}

// takes makes an attempt that succeeds, and returns the request of the owner that the waiter is then.
func (w waiter) takes(what string) backend.Request {
	w.t.Helper()
	req := request(w.key, "next")
	g, err := w.Acquire(w.t.Context(), req)
	if err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	req.Fence, req.Private = g.Fence, g.Private
	return req
}

// When a holder dies, a waiter has the lock when the TTL is over that the holder relied on. It has it no earlier,
// counted from before the last renewal, and less than a second later, although the server counts whole seconds.
func TestWaiterHasTheLockWhenTheTTLIsOver(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	const ttl = 1050 * time.Millisecond // the server would keep the lock for two seconds
	best := time.Hour
	for n := range 5 { // the machine may stand still
		key := fmt.Sprint("k", n)
		holder, next := natslock.NewBackend(s.js), natslock.New(s.connect(t))
		req := request(key, "holder")
		req.TTL = ttl
		g, err := holder.Acquire(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		req.Fence, req.Private = g.Fence, g.Private
		granted, failed := make(chan time.Time, 1), make(chan error, 1)
		go func() {
			defer close(granted)
			if _, err := next.Lock(ctx, key, locker.NoRenewal()); err != nil {
				failed <- err
				return
			}
			granted <- time.Now()
		}()
		sent := time.Time{}
		for range 3 {
			contention.Rest(ctx, nil, 200*time.Millisecond)
			sent = time.Now()
			if err = holder.Extend(ctx, req); err != nil {
				break
			}
		}
		at, ok := <-granted
		switch {
		case !ok:
			t.Fatal(<-failed)
		case err != nil:
			t.Logf("the holder has lost its lock in a renewal: %v", err)
		case at.Sub(sent) < ttl:
			t.Fatalf("the next holder had the lock %v after a renewal for %v was sent", at.Sub(sent), ttl)
		default:
			best = min(best, at.Sub(sent))
		}
		_ = next.Close()
		if best < ttl+300*time.Millisecond {
			return
		}
	}
	t.Errorf("with a TTL of %v, the next holder had the lock %v after the last renewal at best", ttl, best)
}

// A waiter is woken when the time of a record is over of which it was told, or which it has read. It gets the lock
// then, with a greater token, although the server would keep that record.
func TestRecordsWhoseTimeIsOverAreWrittenOver(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.store.Left(t.Context()) // creates the bucket
	for _, state := range []string{"held", "extended", "kept"} {
		told := waits(t, natslock.NewBackend(s.js), "told of "+state)
		seq := s.record(told.key, state, soon, 0)
		told.wakes()
		if req := told.takes(told.key); req.Fence/backend.MaxFences <= seq {
			t.Errorf("%s: token %d after the record %d", told.key, req.Fence, seq)
		}
		reads := waits(t, natslock.NewBackend(s.js), "read of "+state)
		silent := s.LoseMessages("locker.")
		_ = s.record(reads.key, state, soon, 0)
		reads.finds(locker.ErrHeld, reads.key)
		reads.wakes()
		_ = reads.takes(reads.key)
		silent()
	}
}

// The time of a record is its own, and not that of the one before it.
func TestRenewedRecordsAreNotWrittenOver(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.store.Left(t.Context()) // creates the bucket
	w := waits(t, natslock.NewBackend(s.js), "told")
	seq := s.record(w.key, "held", soon, 0)
	_ = s.record(w.key, "extended", keeps, seq)
	contention.Rest(t.Context(), nil, 2*soon)
	w.finds(locker.ErrHeld, "a waiter that was told of the renewal")

	// This one was not told, and believes that the time is over.
	defer s.LoseMessages("locker.")()
	w = waits(t, natslock.NewBackend(s.js), "not told")
	_ = s.record(w.key, "held", soon, 0)
	w.finds(locker.ErrHeld, "before the renewal")
	holder := request(w.key, "dead")
	if err := s.store.Extend(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	w.wakes()
	w.finds(locker.ErrHeld, "a waiter that was not told of the renewal")
	if err := s.store.Verify(t.Context(), holder); err != nil {
		t.Errorf("the holder, after the waiter has tried: %v", err)
	}
}

// Whoever may publish on the subjects on which the server tells of changes cannot make a waiter take a lock that is
// held. In this test somebody announces a record before it is stored.
func TestForgedMessagesTakeNoLock(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	s.store.Left(ctx) // creates the bucket
	const nonce = "the nonce of the record"
	for name, forged := range map[string]natsclient.Header{
		"a free record":                   {"Locker-State": {"free"}, "KV-Operation": {"DEL"}},
		"a record that ends soon":         {"Locker-State": {"held"}, "Locker-TTL": {"1"}},
		"a renewal that ends soon":        {"Locker-State": {"extended"}, "Locker-TTL": {"1"}},
		"a record with another nonce":     {"Locker-State": {"held"}, "Locker-TTL": {"1"}, "Locker-Nonce": {"guessed"}},
		"another TTL of the right record": {"Locker-State": {"held"}, "Locker-TTL": {"1"}, "Locker-Nonce": {nonce}},
	} {
		w := waits(t, natslock.NewBackend(s.js), name)
		seq := s.record(w.key, "held", keeps, 0)
		w.finds(locker.ErrHeld, name+", before it")
		m := &natsclient.Msg{Subject: strings.Replace(s.store.Subject(w.key), "$KV.", "locker.v2.", 1), Header: forged}
		m.Header.Set("Nats-Sequence", strconv.FormatUint(seq+1, 10))
		if err := s.js.Conn().PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		w.wakes()
		if next := s.recordWith(nonce, w.key, "extended", keeps, seq); next != seq+1 {
			t.Fatalf("%s: the record has the number %d, not %d", name, next, seq+1)
		}
		for range 3 {
			w.finds(locker.ErrHeld, name)
		}
	}
}

// A record that somebody has announced before it was stored is not overdue when its TTL has passed since then. It would
// be if the announcement had its nonce, which nobody knows before the holder has sent it.
func TestTheTimeOfARecordBeginsWhenItIsSent(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	s.store.Left(ctx) // creates the bucket
	const ttl = time.Second
	for _, nonce := range []string{"", "guessed", "the right one"} {
		for n := 0; ; n++ { // until the machine does not stand still
			w := waits(t, natslock.NewBackend(s.js), fmt.Sprint(nonce, n))
			seq := s.record(w.key, "held", keeps, 0)
			w.finds(locker.ErrHeld, nonce+", before the announcement")
			m := natsclient.NewMsg(strings.Replace(s.store.Subject(w.key), "$KV.", "locker.v2.", 1))
			m.Header.Set("Locker-State", "extended")
			m.Header.Set("Locker-TTL", strconv.Itoa(int(ttl.Milliseconds())))
			m.Header.Set("Nats-Sequence", strconv.FormatUint(seq+1, 10))
			if nonce != "" {
				m.Header.Set("Locker-Nonce", nonce)
			}
			if err := s.js.Conn().PublishMsg(m); err != nil {
				t.Fatal(err)
			}
			w.wakes() // when the TTL has passed
			stored := time.Now()
			if next := s.recordWith("the right one", w.key, "extended", ttl, seq); next != seq+1 {
				t.Fatalf("%q: the record has the number %d, not %d", nonce, next, seq+1)
			}
			_, err := w.Acquire(ctx, request(w.key, "next"))
			if time.Since(stored) >= ttl && n < 10 {
				continue
			}
			if taken := err == nil; taken != (nonce == "the right one") || !taken && !errors.Is(err, locker.ErrHeld) {
				t.Errorf("announced with the nonce %q: %v", nonce, err)
			}
			break
		}
	}
}

// A holder that renews its lock does not lose it to waiters that are not told of renewals, however often their time
// seems to be over.
func TestHolderThatRenewsKeepsItsLock(t *testing.T) {
	t.Parallel()
	s := start(t)
	holder := natslock.New(s.js)
	defer holder.Close()
	lease, err := holder.Lock(t.Context(), "k", locker.TTL(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer s.LoseMessages("locker.")()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	for range 3 {
		next := natslock.New(s.connect(t))
		defer next.Close()
		done := make(chan struct{})
		defer func() { <-done }()
		go func() {
			defer close(done)
			got, err := next.Lock(ctx, "k")
			if err == nil && lease.Err() == nil && time.Now().Before(lease.Until()) {
				t.Errorf("token %d was granted while the lease with token %d is valid", got.Fence(), lease.Fence())
			}
		}()
	}
	<-ctx.Done()
}

// A renewal that arrives after somebody else was granted the lock is refused, and so is a release. The holder learns
// that it has lost the lock.
func TestRenewalAfterTheNextHolderIsRefused(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	holder := natslock.NewBackend(s.connect(t))
	req := request("k", "holder")
	req.TTL = time.Second
	g, err := holder.Acquire(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	req.Fence, req.Private = g.Fence, g.Private
	w := waits(t, natslock.NewBackend(s.js), "k")
	w.finds(locker.ErrHeld, "while the holder has the lock")
	w.wakes()
	next := w.takes("when its time is over")
	if err := s.store.PutHeld(ctx, "k", g.Fence/backend.MaxFences, "holder"); !errors.Is(err, natslock.ErrOther) {
		t.Errorf("a renewal that arrives late: %v", err)
	}
	var lost *locker.NotHeldError
	if err := holder.Extend(ctx, req); !errors.As(err, &lost) || lost.Reason != locker.LostTakenOver {
		t.Errorf("the next renewal: %v, expected that the lock was taken over", err)
	}
	if err := holder.Release(ctx, req); !errors.Is(err, locker.ErrNotHeld) {
		t.Errorf("the release: %v", err)
	}
	if err := w.Verify(ctx, next); err != nil {
		t.Errorf("the next holder, after all that: %v", err)
	}
}

// An attempt to write over such a record is undone if its outcome is unknown, like one over a free record: the lock is
// free soon, and the attempt cannot be stored later.
func TestAttemptsOverSuchRecordsAreUndone(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	s.store.Left(ctx) // creates the bucket
	for _, arrives := range []bool{true, false} {
		b := natslock.NewBackend(meddler{
			JetStream: s.js,
			publish: func(m *natsclient.Msg, send func() (*jetstream.PubAck, error)) (*jetstream.PubAck, error) {
				if isLock(m) {
					if arrives {
						_, _ = send()
					}
					return nil, context.DeadlineExceeded
				}
				return send()
			},
		})
		w := waits(t, b, fmt.Sprint("arrives: ", arrives))
		seq := s.record(w.key, "held", soon, 0)
		w.wakes()
		w.finds(locker.ErrUnavailable, w.key)
		next := natslock.New(s.js)
		becomesFree(t, next, w.key)
		_ = next.Close()
		if err := s.store.PutHeld(ctx, w.key, seq, "next"); !errors.Is(err, natslock.ErrOther) {
			t.Errorf("%s: the attempt once more: %v", w.key, err)
		}
	}
}

// While another change of such a record is on its way to the replicas, an attempt is repeated.
func TestAttemptsOverSuchRecordsAreRepeated(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.store.Left(t.Context()) // creates the bucket
	var refused atomic.Bool
	w := waits(t, natslock.NewBackend(meddler{
		JetStream: s.js,
		publish: func(m *natsclient.Msg, send func() (*jetstream.PubAck, error)) (*jetstream.PubAck, error) {
			if isLock(m) && !refused.Swap(true) {
				return nil, refusal(changing)
			}
			return send()
		},
	}), "k")
	_ = s.record(w.key, "held", soon, 0)
	w.wakes()
	_ = w.takes("after a refusal")
}

// The time of a record counts from the answer to a read. When the read was sent, the record may not have been there.
func TestTimeCountsFromTheAnswer(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.store.Left(t.Context()) // creates the bucket
	const ttl = 3 * time.Second
	sent, stored := make(chan struct{}, 1), make(chan struct{})
	w := waits(t, natslock.NewBackend(meddler{
		JetStream: s.js,
		publish: func(_ *natsclient.Msg, send func() (*jetstream.PubAck, error)) (*jetstream.PubAck, error) {
			return send()
		},
		read: func(string) error {
			sent <- struct{}{}
			<-stored
			return nil
		},
	}), "k")
	defer s.LoseMessages("locker.")()
	seq := s.record(w.key, "held", keeps, 0)
	go func() {
		defer close(stored)
		<-sent
		contention.Rest(t.Context(), nil, ttl)
		_ = s.record(w.key, "extended", ttl, seq)
	}()
	w.finds(locker.ErrHeld, "a record that was stored while the read was on its way")
}

// What was seen over a connection that was lost does not count: the server may have lost its last records in a crash of
// its machine, and have given their numbers to others.
func TestSightingsEndWithTheConnection(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.store.Left(t.Context()) // creates the bucket
	const ttl = 2 * time.Second
	for n := range 5 {
		w := waits(t, natslock.NewBackend(s.connect(t)), fmt.Sprint("k", n))
		_ = s.record(w.key, "held", ttl, 0)
		began := time.Now()
		w.finds(locker.ErrHeld, "before the connection is lost")
		s.Cut()
		w.wakes()
		if time.Since(began) >= ttl { // it may have been woken because the time is over
			continue
		}
		contention.Rest(t.Context(), nil, time.Until(began.Add(ttl+soon)))
		w.finds(locker.ErrHeld, "after another connection was made")
		return
	}
	t.Error("connections take longer than a TTL")
}

// The time of a record without a TTL is never over.
func TestRecordsWithoutATTLStay(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.store.Left(t.Context()) // creates the bucket
	w := waits(t, natslock.NewBackend(s.js), "k")
	_ = s.record(w.key, "held", 0, 0)
	for range 2 {
		w.finds(locker.ErrHeld, "a record without a TTL")
	}
}

// Each record of a lock that is taken says for how long at most its owner relies on it, and has a nonce of its own.
func TestRecordsHaveTheirTTL(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	req := request("k", "holder")
	req.TTL = 10*time.Second + 1
	g, err := s.store.Acquire(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	nonces := map[string]bool{"": true}
	is := func(what string, least, most int) {
		t.Helper()
		m, err := s.stream().GetLastMsgForSubject(ctx, s.store.Subject("k"))
		if err != nil {
			t.Fatal(err)
		}
		if nonce := m.Header.Get("Locker-Nonce"); nonces[nonce] {
			t.Errorf("%s: the nonce %q, which an earlier record had", what, nonce)
		} else {
			nonces[nonce] = true
		}
		ms, err := strconv.Atoi(m.Header.Get("Locker-TTL"))
		if secs, _ := strconv.Atoi(m.Header.Get("Nats-TTL")); err != nil || ms < least || ms > most || secs*1000 < ms {
			t.Errorf("%s: %v ms, and %d s by the server", what, m.Header.Get("Locker-TTL"), secs)
		}
	}
	is("a lock", 10_001, 10_001)
	req.Fence, req.Private, req.TTL = g.Fence, g.Private, time.Second
	if err := s.store.Extend(ctx, req); err != nil {
		t.Fatal(err)
	}
	is("an extension that must not shorten the lock", 1000, 10_001)
	req.TTL = 20 * time.Second
	if err := s.store.Extend(ctx, req); err != nil {
		t.Fatal(err)
	}
	is("an extension", 20_000, 20_000)
	req.Keep = 5 * time.Second
	if err := s.store.Release(ctx, req); err != nil {
		t.Fatal(err)
	}
	is("a lock that is kept", 1, 5000)
}

// An extension whose answer has not come yet is not shortened by a renewal, which writes over its record.
func TestRenewalDoesNotShortenAnExtensionUnderWay(t *testing.T) {
	s, ctx := start(t), t.Context()
	stored, renewed := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	first.Store(true)
	late := func(m *natsclient.Msg, send func() (*jetstream.PubAck, error)) (*jetstream.PubAck, error) {
		ack, err := send()
		if m.Header.Get("Locker-State") == "extended" && first.CompareAndSwap(true, false) {
			close(stored)
			<-renewed
		}
		return ack, err
	}
	b := natslock.NewBackend(meddler{JetStream: s.js, publish: late})
	defer b.Close()
	req := request("k", "owner")
	req.TTL = time.Second
	g, err := b.Acquire(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	req.Fence, req.Private = g.Fence, g.Private
	longer, extended := req, make(chan error)
	longer.TTL = time.Minute
	go func() { extended <- b.Extend(ctx, longer) }()
	<-stored
	if err := b.Extend(ctx, req); err != nil {
		t.Error(err)
	}
	close(renewed)
	if err := <-extended; err != nil {
		t.Fatal(err)
	}
	m, err := s.stream().GetLastMsgForSubject(ctx, s.store.Subject(req.Key))
	if err != nil {
		t.Fatal(err)
	}
	if ms, _ := strconv.Atoi(m.Header.Get("Locker-TTL")); ms < 30_000 {
		t.Errorf("the lock, extended by a minute, lasts for %d ms", ms)
	}
}
