package natslock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/natslock"
)

// two are requests for the locks x and y.
var two = []backend.Request{request("x", "a"), request("y", "b")}

// putFree stores free records of both, which stay for as long as the test takes, and returns their numbers.
func (s store) putFree() (x, y uint64) {
	s.t.Helper()
	numbers := make([]uint64, len(two))
	for i, req := range two {
		var err error
		if numbers[i], err = s.store.PutFree(s.t.Context(), req.Key, 10*time.Minute); err != nil {
			s.t.Fatal(err)
		}
	}
	return numbers[0], numbers[1]
}

// last returns the number of the last record of key.
func (s store) last(key string) uint64 {
	s.t.Helper()
	m, err := s.stream().GetLastMsgForSubject(s.t.Context(), s.store.Subject(key))
	if err != nil {
		s.t.Fatal(err)
	}
	return m.Sequence
}

// The server says of the second copy of a batch's last message that the batch is incomplete. The batch is stored all
// the same, so the locks are acquired. To acquire them one after the other would find them held by the same call.
func TestABatchWhoseEndArrivesTwiceIsGranted(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.putFree()
	l := natslock.New(meddler{JetStream: s.js, publish: twice})
	defer l.Close()
	lease, err := locker.TryLockAll(t.Context(), l, []string{"x", "y"})
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// The first copy of a batch's last message may still be on its way when the second one is refused. AcquireMany makes
// sure that it is not stored before it says that the locks cannot be acquired in one step. That takes one change, of
// one of the records.
func TestARefusedBatchIsNotStoredLater(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	_, y := s.putFree()
	var late *natsclient.Msg
	b := natslock.NewBackend(meddler{
		JetStream: s.js,
		publish: func(m *natsclient.Msg, send func() (*jetstream.PubAck, error)) (*jetstream.PubAck, error) {
			if isLock(m) {
				late = m
				return nil, refusal(incompleteBatch)
			}
			return send()
		},
	})
	if _, err := b.AcquireMany(ctx, two, backend.Choice{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Fatalf("the refused batch: %v", err)
	}
	if ack, err := s.js.PublishMsg(ctx, late); err == nil {
		t.Errorf("the batch was stored late, as %d", ack.Sequence)
	}
	if err := b.Close(); err != nil { // after the clean-ups, if there are any
		t.Error(err)
	}
	if last := s.last("y"); last != y {
		t.Errorf("the free record of y was replaced by %d, it was %d", last, y)
	}
}

// The loser of a race for a batch sees a newer record of one lock. So its batch cannot be stored any more, and it
// leaves the free record of the other lock alone.
func TestTheLoserOfARaceUndoesNothing(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	_, y := s.putFree()
	b := natslock.NewBackend(meddler{
		JetStream: s.js,
		publish: func(m *natsclient.Msg, send func() (*jetstream.PubAck, error)) (*jetstream.PubAck, error) {
			if isLock(m) {
				if _, err := s.store.Acquire(ctx, request("x", "winner")); err != nil {
					t.Error(err)
				}
			}
			return send()
		},
	})
	if _, err := b.AcquireMany(ctx, two, backend.Choice{}); !errors.Is(err, locker.ErrHeld) {
		t.Fatalf("the loser: %v", err)
	}
	if err := b.Close(); err != nil { // after the clean-ups, if there are any
		t.Error(err)
	}
	if last := s.last("y"); last != y {
		t.Errorf("the free record of y was replaced by %d, it was %d", last, y)
	}
}

// A leader ends a free record by its clock while a batch is on its way that is written over it. The attempt then finds
// no record, and its next change is refused. The batch is undone over the records that it was sent for, although it is
// stored between the clean-ups of the two locks.
func TestABatchIsUndoneOverTheRecordsItWasSentFor(t *testing.T) {
	t.Parallel()
	s := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.putFree()
	x, y := s.store.Subject("x"), s.store.Subject("y")
	var late atomic.Pointer[natsclient.Msg] // the two clean-ups run at the same time
	stored := make(chan struct{})
	b := natslock.NewBackend(meddler{
		JetStream: s.js,
		publish: func(m *natsclient.Msg, send func() (*jetstream.PubAck, error)) (*jetstream.PubAck, error) {
			switch none := m.Header.Get(jetstream.ExpectedLastSubjSeqHeader) == "0"; {
			case isLock(m):
				late.Store(m)
				return nil, refusal(changing)
			case m.Subject == x && none:
				cancel()
				return nil, refusal(changing)
			case m.Subject == y:
				if batch := late.Load(); batch != nil {
					_, err := s.js.PublishMsg(t.Context(), batch)
					t.Logf("the batch arrives: %v", err)
					late.Store(nil)
					close(stored)
				}
			}
			return send()
		},
		read: func(subject string) error {
			if subject == x && late.Load() != nil && ctx.Err() == nil {
				return jetstream.ErrMsgNotFound
			}
			return nil
		},
	})
	if _, err := b.AcquireMany(ctx, two, backend.Choice{}); !errors.Is(err, locker.ErrUnavailable) {
		t.Fatalf("the attempt: %v", err)
	}
	select {
	case <-stored:
	case <-time.After(30 * time.Second):
		t.Fatal("the second lock is not cleaned up")
	}
	next := locker.NewClient(natslock.NewBackend(s.js))
	defer next.Close()
	for _, req := range two {
		becomesFree(t, next, req.Key)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
