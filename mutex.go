package locker

import (
	"context"
	"errors"
	"sync"
)

// NewMutex returns a sync.Locker for the lock of key, for code that expects one. Its Lock waits for as long as it
// takes. Several goroutines can share it. Two sync.Lockers for one key exclude each other, too.
//
// A sync.Locker cannot report anything. So its methods panic where the program must not go on: Lock with the error of
// l, for example if the store cannot be reached, and Unlock if the lock was lost while it was held. Between the two,
// nobody learns of a loss. Unlock also panics if the lock was not locked. If the release is not answered, Unlock
// returns, and the release goes on in the background. Code that can take a context should use [Do].
func NewMutex(l Locker, key string, opts ...Option) sync.Locker {
	return &mutex{locker: l, key: key, opts: opts, mine: make(chan struct{}, 1)}
}

type mutex struct {
	locker Locker
	key    string
	opts   []Option

	// mine has a value from Lock to Unlock, so that a lease belongs to one of the goroutines even if a lock is lost. They
	// wait for the lock together, so that it is handed over from one to the next. With a sync.Mutex instead, those that
	// wait would stop the clock of testing/synctest.
	mine  chan struct{}
	lease Lease // nil if it is not locked
}

func (m *mutex) Lock() {
	for {
		lease, err := m.locker.Lock(context.Background(), m.key, m.opts...)
		if err != nil {
			panic(err)
		}
		if m.take(lease) {
			return
		}
	}
}

// take makes lease that of the goroutine that calls. It waits if another one has lost the lock and has not unlocked it.
// It unlocks lease, and returns false, if it is lost by then.
func (m *mutex) take(lease Lease) (taken bool) {
	m.mine <- struct{}{}
	defer func() {
		if !taken { // also if a hook panics
			<-m.mine
			_ = lease.Unlock(context.Background())
		}
	}()
	if lease.Err() != nil {
		return false
	}
	m.lease = lease
	return true
}

func (m *mutex) Unlock() {
	lease := m.lease
	if lease == nil {
		panic("locker: unlock of an unlocked mutex")
	}
	m.lease = nil
	var lost error
	defer func() { // also if Err panics in a hook
		defer func() { <-m.mine }()
		if err := errors.Join(lost, lease.Unlock(context.Background())); errors.Is(err, ErrLost) {
			panic(&Error{"unlock", m.key, err})
		}
	}()
	lost = lease.Err()
}
