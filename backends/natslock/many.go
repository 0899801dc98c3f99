package natslock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// The headers of the messages of a batch, which the server stores all or none (2.12).
const (
	batchID     = "Nats-Batch-Id"
	batchNumber = "Nats-Batch-Sequence"
	batchCommit = "Nats-Batch-Commit"
)

// Capabilities implements [backend.Capable].
func (b *store) Capabilities() backend.Capabilities {
	return backend.Capabilities{Tokens: true, CommonTokens: true, Blocks: true, Labels: true, CountsTime: true}
}

// AcquireMany implements [backend.ManyAcquirer], with a batch that writes each lock over a free record of a known
// number, as Acquire does. So each of the locks can be undone by itself: if the batch comes after the clean-up of one,
// nothing of it is stored.
func (b *store) AcquireMany(
	ctx context.Context, reqs []backend.Request, _ backend.Choice,
) (granted []*backend.Grant, err error) {
	if err := b.usable(); err != nil {
		return nil, err
	}
	if err := b.chores.Backlog(); err != nil {
		return nil, unavailable(err)
	}
	ctx, cancel := b.bounded(ctx, reqs[0].TTL)
	defer cancel()
	start := time.Now()
	found, err := b.open(ctx)
	if err != nil {
		return nil, err
	}
	if !found.batches {
		return nil, errors.ErrUnsupported
	}
	s := step{
		b: b, bucket: found, reqs: reqs, start: start, last: make([]uint64, len(reqs)), doubt: make([]uint64, len(reqs)),
	}
	defer func() {
		if granted == nil {
			s.undo()
		}
	}()
	for n := 0; ; n++ {
		// A batch that is refused costs as much as another, and a read much less: the server syncs its disk for each.
		if grants, err := s.read(ctx); grants != nil || err != nil {
			return grants, err
		}
		grants, err := s.try(ctx, n)
		if !errors.Is(err, errOther) {
			return grants, err
		}
		if err := pause(ctx, n); err != nil {
			return nil, err
		}
	}
}

// step is an attempt to acquire several locks at once.
type step struct {
	b      *store
	bucket *bucket
	reqs   []backend.Request
	start  time.Time
	last   []uint64 // the numbers of the free records; 0: there is none
	doubt  []uint64 // those over which a batch may have been written although it was refused, see Acquire; 0: none
}

// try makes the n-th attempt.
func (s *step) try(ctx context.Context, n int) ([]*backend.Grant, error) {
	for i, req := range s.reqs {
		if s.last[i] != 0 {
			continue
		}
		var err error
		s.last[i], err = s.b.put(ctx, s.b.subject(req.Key), 0, record{State: free, ttl: freeFor})
		if err != nil {
			return nil, err
		}
	}
	end, err := s.send(ctx, fmt.Sprint(s.reqs[0].Token, ".", n))
	if errors.Is(err, errors.ErrUnsupported) {
		// When the last message arrives twice, the second one belongs to no batch, and its refusal may be the answer. So
		// the first free record is replaced: if that succeeds, the batch is not stored, and can never be.
		first := s.b.subject(s.reqs[0].Key)
		if _, err := s.b.put(ctx, first, s.last[0], record{State: free, ttl: freeFor}); err != nil {
			return nil, err
		}
		clear(s.doubt)
	}
	if err != nil {
		return nil, err
	}
	grants := make([]*backend.Grant, len(s.reqs))
	for i, req := range s.reqs {
		seq := end - uint64(len(s.reqs)-1-i)
		g := grant(firstToken(seq), seq, s.start, req)
		grants[i] = &g
	}
	return grants, nil
}

// undo undoes, in the background, the batches whose outcome is in doubt.
func (s *step) undo() {
	for i, seq := range s.doubt {
		if seq != 0 {
			s.b.undoLater(s.reqs[i], seq, s.start)
		}
	}
}

// refusedBatches are the codes of refusals of a batch for reasons that are not its conditions: too many batches at the
// same time, too many messages, or a leader that has not seen all of them.
var refusedBatches = []jetstream.ErrorCode{10174, 10175, 10176, 10177, 10179, 10199, 10200, 10210}

// send sends the batch, and returns the number of its last message. The error matches errors.ErrUnsupported if the
// batch was refused for other reasons than its conditions.
func (s *step) send(ctx context.Context, id string) (end uint64, err error) {
	msgs := make([]*natsclient.Msg, len(s.reqs))
	for i, req := range s.reqs {
		if s.last[i] > maxSeq {
			return 0, errSpent
		}
		lock := record{State: held, Owner: req.Token, Label: req.Label, ttl: req.TTL}
		m := lock.message(s.b.subject(req.Key))
		m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(s.last[i], 10))
		m.Header.Set(batchID, id)
		m.Header.Set(batchNumber, strconv.Itoa(i+1))
		msgs[i] = m
	}
	last := msgs[len(msgs)-1]
	last.Header.Set(batchCommit, "1")
	start := time.Now()
	for _, m := range msgs[:len(msgs)-1] {
		s.bucket.seal(m)
		_, err := within(ctx, func() (any, error) { return nil, s.b.jet().Conn().PublishMsg(m) })
		if err != nil { // without the last one, the server forgets the others
			return 0, s.b.failed(start, err)
		}
	}
	end, err = s.b.publish(ctx, last)
	if errors.Is(err, errOther) || errors.As(err, new(unknown)) {
		for i, seq := range s.last {
			s.doubt[i] = max(s.doubt[i], seq) // a smaller number is that of an old record
		}
	}
	var refused *jetstream.APIError
	if errors.As(err, &refused) && slices.Contains(refusedBatches, refused.ErrorCode) {
		return 0, errors.ErrUnsupported
	}
	return end, err
}

// read reads the records of all locks. It returns neither grants nor an error if all are free. A newer record than that
// over which a batch was sent proves that nothing of the batch can be stored any more, unless a part of it is seen.
func (s *step) read(ctx context.Context) ([]*backend.Grant, error) {
	grants := make([]*backend.Grant, 0, len(s.reqs)) // of the same batch, which was executed before
	newer := false
	var err error
	for i, req := range s.reqs {
		r, failed := s.b.get(ctx, s.b.subject(req.Key))
		switch {
		case failed != nil:
			return nil, failed
		case r.State == held && r.Owner == req.Token:
			g := grant(r.token(), r.seq, s.start, req)
			grants = append(grants, &g)
		case r.State == foreign:
			err = &locker.Error{Op: "trylock", Key: req.Key, Err: locker.ErrForeignKey}
		case r.taken():
			err = &locker.Error{Op: "trylock", Key: req.Key, Err: r.heldError()}
		}
		s.last[i] = r.seq
		newer = newer || r.seq > s.doubt[i]
	}
	if newer && len(grants) == 0 {
		clear(s.doubt)
	}
	switch {
	case len(grants) == len(s.reqs):
		return grants, nil
	case err == nil && len(grants) > 0:
		err = unavailable(errors.New("a part of the locks has ended"))
	}
	return nil, err
}
