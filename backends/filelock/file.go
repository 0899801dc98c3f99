// Package filelock keeps locks in a directory, for the processes of one machine, without a server:
//
//	import _ "github.com/golocker/locker/backends/filelock"
//
//	l, err := config.Open(ctx, "file:/var/lib/myapp/locks")
//
// or, without a configuration, by [Open]. The promises are those of package record; docs/backends/file.md says what
// they cost, and what must be true of the directory. A machine is what one kernel runs: containers that share a
// directory exclude each other.
//
// All processes count the TTL by one clock. So a lock of a process that was killed is free when its TTL is over, also
// for TryLock in a process that has just begun. After a restart of the machine, or when a volume has come from another
// one, the TTL counts from the first look of anybody.
package filelock

import (
	"context"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/record"
)

const (
	// DefaultPrefix is put before every key of the locks of [Open], unless an option says otherwise.
	DefaultPrefix = "lock:"

	// DefaultPoll is the longest pause between two looks of a waiter, unless record.Poll says otherwise. A look takes
	// some microseconds.
	DefaultPoll = 50 * time.Millisecond
)

// Open returns a Client that keeps its locks in the directory dir. It fails as [OpenStore] does.
func Open(dir string, opts ...record.Option) (*locker.Client, error) {
	s, err := OpenStore(dir)
	if err != nil {
		return nil, err
	}
	return record.New(s, append([]record.Option{record.Prefix(DefaultPrefix), record.Poll(DefaultPoll)}, opts...)...), nil
}

// Get implements record.Store.
func (s *Store) Get(ctx context.Context, name string) (text []byte, version string, err error) {
	r := s.do(ctx, func() result { return s.get(name) })
	return r.text, r.version, r.err
}

// Create implements record.Store.
func (s *Store) Create(ctx context.Context, name string, text []byte) (version string, err error) {
	r := s.do(ctx, func() result { return s.put(ctx, name, "", text) })
	return r.version, r.err
}

// Replace implements record.Store.
func (s *Store) Replace(ctx context.Context, name, version string, text []byte) (newVersion string, err error) {
	if version == "" {
		return "", record.ErrConflict
	}
	r := s.do(ctx, func() result { return s.put(ctx, name, version, text) })
	return r.version, r.err
}

// Clock implements record.Clock. The id is looked up each time, after the clock, which takes 10 µs: a process that was
// restored from a checkpoint (CRIU) has another clock from then on, in a time namespace.
func (s *Store) Clock() (id string, now time.Duration) {
	now, err := monotonic()
	if err != nil {
		return "", 0
	}
	return bootID(), now
}
