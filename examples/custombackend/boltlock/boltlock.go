// Package boltlock keeps locks in a bbolt file, which the processes of one machine share, and which survives them. It
// shows what a store of your own needs: the three methods of record.Store, one more for lists, and, in register.go, a
// name for configurations. Package record has the protocol, and locker.Client waits, renews and notices losses.
package boltlock

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/golocker/locker/record"
)

// Store implements record.Store. A record is a key of a bucket, and its text is the value. The version is a hash of the
// text, which is enough because no text is written twice.
type Store struct{ path string }

// bucket has the records.
var bucket = []byte("locks")

// NewStore returns a Store in the file at path, on a local file system. The file need not exist. Stores of one file, in
// one process or in many, share their records.
func NewStore(path string) *Store { return &Store{path} }

// Get implements record.Store.
func (s *Store) Get(ctx context.Context, name string) ([]byte, string, error) {
	text, err := s.do(ctx, func(db *bolt.DB) (text []byte, err error) {
		err = db.View(func(tx *bolt.Tx) error {
			if b := tx.Bucket(bucket); b != nil {
				text = bytes.Clone(b.Get([]byte(name)))
			}
			return nil
		})
		return text, err
	})
	return text, versionOf(text), err
}

// pageSize is how many records a page of List has.
const pageSize = 100

// List implements record.Lister, which is optional: without it, "locker ls" does not know this store.
func (s *Store) List(ctx context.Context, prefix, from string) (page []record.Listed, next string, err error) {
	names := make(chan []record.Listed, 1)
	_, err = s.do(ctx, func(db *bolt.DB) ([]byte, error) {
		return nil, db.View(func(tx *bolt.Tx) error {
			var all []record.Listed
			defer func() { names <- all }()
			b := tx.Bucket(bucket)
			if b == nil {
				return nil
			}
			at := b.Cursor()
			for name, text := at.Seek([]byte(max(prefix, from))); name != nil && bytes.HasPrefix(name, []byte(prefix)); {
				if all = append(all, record.Listed{Name: string(name), Text: bytes.Clone(text)}); len(all) > pageSize {
					break
				}
				name, text = at.Next()
			}
			return nil
		})
	})
	if err != nil {
		return nil, "", err
	}
	if page = <-names; len(page) > pageSize {
		return page[:pageSize], page[pageSize].Name, nil
	}
	return page, "", nil
}

// Create implements record.Store.
func (s *Store) Create(ctx context.Context, name string, text []byte) (string, error) {
	return s.put(ctx, name, "", text)
}

// Replace implements record.Store.
func (s *Store) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	return s.put(ctx, name, version, text)
}

// put compares and writes in one transaction. The version of a record that does not exist is empty.
func (s *Store) put(ctx context.Context, name, version string, text []byte) (string, error) {
	_, err := s.do(ctx, func(db *bolt.DB) ([]byte, error) {
		return nil, db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists(bucket)
			if err != nil {
				return err
			}
			if versionOf(b.Get([]byte(name))) != version {
				return record.ErrConflict
			}
			return b.Put([]byte(name), text)
		})
	})
	return versionOf(text), err
}

func versionOf(text []byte) string {
	if text == nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// do opens the file for this process alone, and calls f. A disk may take long: when ctx ends, do returns, and f goes on
// until the disk has answered.
func (s *Store) do(ctx context.Context, f func(*bolt.DB) ([]byte, error)) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		db, err := s.open(ctx)
		if err != nil {
			done <- result{err: err}
			return
		}
		text, err := f(db)
		done <- result{text, errors.Join(err, db.Close())}
	}()
	select {
	case r := <-done:
		return r.text, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// open waits for the file. When the process that has the file dies, the kernel gives it back. A process that is stopped
// keeps it, and then the calls of all others end with their contexts. bbolt knows nothing of contexts, so it tries once
// at a time: without a Timeout it would wait for ever, and with a longer one it tries every 50 ms.
func (s *Store) open(ctx context.Context) (*bolt.DB, error) {
	for ctx.Err() == nil {
		db, err := bolt.Open(s.path, 0o600, &bolt.Options{Timeout: time.Nanosecond})
		if !errors.Is(err, bolterrors.ErrTimeout) {
			return db, err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil, ctx.Err()
}
