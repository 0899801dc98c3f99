package natslock

import (
	"context"
	"encoding/hex"
	"errors"
	"iter"
	"strings"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker/inspect"
)

const (
	// page is how many messages a request of List asks for.
	page = 100

	// idle is how long a loop over a listing may stand still. Then the server forgets the consumer, and List fails.
	idle = 5 * time.Minute

	// markKey is the key of the message after which a listing may end.
	markKey = "=list"

	// hashed is what the keys of the bucket begin with whose locks have keys that are too long.
	hashed = "=s"
)

// errLost means that the server has sent messages that have not arrived.
var errLost = errors.New("messages of the listing were lost, or the consumer has begun anew")

// List implements [inspect.Lister]. A consumer of its own reads the bucket in the order in which messages were stored.
//
// A renewal moves a lock to the end, so what is held meanwhile may be read twice, and is not left out as long as the
// listing goes on. It ends when it has read a mark that was stored when there had been nothing more to read. For two
// reasons that was not enough to end. A consumer may be with a server that follows the leader, and lags behind. And the
// server counts what is to come in two steps, of which the first takes off the record that a renewal replaces.
//
// A server that lags behind may also have locks that were freed before the listing began. So in a cluster, the listing
// asks the leader about each lock, and shows its answer.
func (b *store) List(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
	return func(yield func(inspect.Listed, error) bool) {
		if err := b.list(ctx, b.prefix+prefix, func(l inspect.Listed) bool { return yield(l, nil) }); err != nil {
			yield(inspect.Listed{}, err)
		}
	}
}

func (b *store) list(ctx context.Context, prefix string, yield func(inspect.Listed) bool) error {
	l := &listing{store: b}
	defer l.close()
	progress := time.Now()
	for n := 0; ; n++ {
		asked := time.Now()
		found, err := l.next(ctx)
		if err != nil {
			return err
		}
		for _, m := range found {
			i, is := l.lock(m, prefix)
			if i.At = asked; is && l.clustered() {
				if is, err = l.again(ctx, &i, m.Subject); err != nil {
					return err
				}
			}
			if is && !yield(i) {
				return nil
			}
			if err := ctxError(ctx); err != nil {
				return err
			}
		}
		switch {
		case len(found) > 0:
			progress, n = time.Now(), -1
		case time.Since(progress) > b.timeout:
			return b.failed(progress, context.DeadlineExceeded)
		}
		switch {
		case l.left > 0:
		case l.mark == 0:
			if l.mark, err = l.store.stamp(ctx); err != nil {
				return err
			}
		case l.seq >= l.mark:
			return nil
		}
		if n > 0 { // the mark has not come yet
			if err := pause(ctx, n); err != nil {
				return err
			}
		}
	}
}

// listing is a consumer of the bucket.
type listing struct {
	*store
	of       *bucket
	consumer jetstream.Consumer // nil before the first request
	read     uint64             // how many messages were read
	seq      uint64             // the number of the last of them
	left     uint64             // how many were to come then
	mark     uint64             // the number of the mark; 0: there is none yet
}

// next reads a page, which may be empty.
func (l *listing) next(ctx context.Context) ([]*jetstream.RawStreamMsg, error) {
	if err := l.usable(); err != nil {
		return nil, err
	}
	ctx, cancel := l.bounded(ctx, l.timeout)
	defer cancel()
	of, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if l.consumer == nil {
		l.of = of
		l.consumer, err = within(ctx, func() (jetstream.Consumer, error) {
			return of.CreateConsumer(ctx, jetstream.ConsumerConfig{
				AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: idle,
			})
		})
		if err != nil {
			return nil, l.failed(start, err)
		}
	}
	found, err := within(ctx, func() (found []*jetstream.RawStreamMsg, err error) {
		batch, err := l.consumer.FetchNoWait(page)
		if err != nil {
			return nil, err
		}
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return nil, err
			}
			if l.read++; meta.Sequence.Consumer != l.read {
				return nil, errLost
			}
			l.seq, l.left = meta.Sequence.Stream, meta.NumPending
			found = append(found, &jetstream.RawStreamMsg{
				Subject: m.Subject(), Header: m.Headers(), Data: m.Data(), Sequence: l.seq, Time: meta.Timestamp,
			})
		}
		return found, batch.Error()
	})
	if l.read == 0 && errors.Is(err, natsclient.ErrNoResponders) {
		return nil, nil // the server of this connection may not have heard yet that another one has the consumer
	}
	if err != nil {
		return nil, l.failed(start, err)
	}
	return found, nil
}

// clustered reports whether the consumer may be with another server than the leader.
func (l *listing) clustered() bool {
	c := l.consumer.CachedInfo().Cluster
	return c != nil && c.Name != ""
}

// again asks the leader about a lock. It reports whether the lock is taken.
func (l *listing) again(ctx context.Context, i *inspect.Listed, subject string) (taken bool, err error) {
	ctx, cancel := l.bounded(ctx, l.timeout)
	defer cancel()
	i.At = time.Now()
	r, err := l.get(ctx, subject)
	i.Inspection = r.inspection()
	return r.taken(), err
}

// stamp stores a mark, which only a leader with a majority can do, and returns its number. It stays for long enough to
// be read.
func (b *store) stamp(ctx context.Context) (uint64, error) {
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	return b.publish(ctx, record{State: free, ttl: 2 * b.timeout}.message(b.subjects()+markKey))
}

// lock returns the lock of a message, if its key begins with prefix, or may do so.
func (l *listing) lock(m *jetstream.RawStreamMsg, prefix string) (found inspect.Listed, is bool) {
	r, name := read(m), strings.TrimPrefix(m.Subject, l.subjects())
	if !r.taken() {
		return found, false
	}
	found.Inspection, found.Cut = r.inspection(), strings.HasPrefix(name, hashed)
	if found.Cut {
		return found, true
	}
	key, is := decode(name)
	found.Key = strings.TrimPrefix(key, l.prefix)
	return found, is && strings.HasPrefix(key, prefix)
}

// close removes the consumer, in the background.
func (l *listing) close() {
	if l.consumer != nil {
		name := l.consumer.CachedInfo().Name
		l.later(time.Now().Add(time.Second), func(ctx context.Context) error { return l.of.DeleteConsumer(ctx, name) })
	}
}

// decode is the reverse of encode. It reports whether name is the encoded form of a key, and not its hash.
func decode(name string) (key string, ok bool) {
	var out []byte
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '=' && i+2 < len(name) {
			b, err := hex.DecodeString(name[i+1 : i+3])
			if err != nil {
				return "", false
			}
			c, i = b[0], i+2
		}
		out = append(out, c)
	}
	return string(out), encode(string(out)) == name
}
