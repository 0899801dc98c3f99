package boltlock

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/golocker/locker"
)

// update opens the file for this process alone, and changes it by f. If f fails, nothing is changed.
func (b *Backend) update(ctx context.Context, f func(locks) error) error {
	db, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	var refused error
	err = db.Update(func(tx *bolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists([]byte("locks"))
		if err != nil {
			return err
		}
		refused = f(locks{bucket, b.prefix})
		return refused
	})
	if refused != nil {
		return refused
	}
	return unavailable(err)
}

// open waits for the file. When the process that has the file dies, the kernel gives it back. A process that is
// stopped keeps it, and then the calls of all others end with their contexts. bbolt knows nothing of contexts, so it
// tries once at a time: without a Timeout it would wait for ever, and with a longer one it tries every 50 ms.
func (b *Backend) open(ctx context.Context) (*bolt.DB, error) {
	for ctx.Err() == nil {
		db, err := bolt.Open(b.path, 0o600, &bolt.Options{Timeout: time.Nanosecond})
		if !errors.Is(err, bolterrors.ErrTimeout) {
			return db, unavailable(err)
		}
		select {
		case <-time.After(b.poll):
		case <-ctx.Done():
		case <-b.closing:
			return nil, locker.ErrClosed
		}
	}
	return nil, unavailable(ctx.Err())
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", locker.ErrUnavailable, err)
}

// record is what the file stores of a lock.
type record struct {
	Token   string    // of the owner; "" if there is none
	Label   string    // of the owner, for people
	Fence   uint64    // the owner's fencing token
	Expires time.Time // no other owner gets the lock before that
}

// locks is the file within a transaction.
type locks struct {
	bucket *bolt.Bucket
	prefix string
}

// Keys may be longer than bbolt allows.
func (l locks) id(key string) []byte {
	sum := sha256.Sum256([]byte(l.prefix + key))
	return sum[:]
}

// get returns the record of a key, or the zero record if there is none.
func (l locks) get(key string) (r record, err error) {
	if text := l.bucket.Get(l.id(key)); text != nil && json.Unmarshal(text, &r) != nil {
		return record{}, locker.ErrForeignKey
	}
	return r, nil
}

// owned is get for a caller that must have the lock.
func (l locks) owned(req locker.Request) (record, error) {
	r, err := l.get(req.Key)
	if err == nil && (r.Token != req.Token || !time.Now().Before(r.Expires)) {
		err = locker.ErrNotHeld
	}
	return r, err
}

func (l locks) put(key string, r record) error {
	text, err := json.Marshal(r)
	if err == nil {
		err = l.bucket.Put(l.id(key), text)
	}
	return unavailable(err)
}

func (l locks) delete(key string) error { return unavailable(l.bucket.Delete(l.id(key))) }

// sweep deletes locks that have expired. Their owners have not released them, and no other caller may ever ask for
// them.
func (l locks) sweep() error {
	var over [][]byte
	err := l.bucket.ForEach(func(id, text []byte) error {
		var r record
		if json.Unmarshal(text, &r) == nil && !time.Now().Before(r.Expires) {
			over = append(over, bytes.Clone(id))
		}
		return nil
	})
	for _, id := range over {
		err = errors.Join(err, l.bucket.Delete(id))
	}
	return unavailable(err)
}

// nextFence counts for all keys together, so that the file does not keep a counter for each. It follows the clock, so
// that tokens grow even if the file has been deleted.
func (l locks) nextFence() (uint64, error) {
	fence := max(l.bucket.Sequence()+1, uint64(time.Now().UnixMicro()))
	return fence, unavailable(l.bucket.SetSequence(fence))
}
