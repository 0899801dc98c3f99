package etcd

import (
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/golocker/locker"
)

// What a waiter has seen: of the owner of the lock, and of faults of etcd.

// saw records who has the lock. It fails if that is not a lock.
func (w *waiter) saw(owner *mvccpb.KeyValue) error {
	held := heldBy(owner)
	var known *locker.HeldError
	if !errors.As(held, &known) {
		return held
	}
	if w.held == nil && w.req.Waiting != nil {
		w.req.Waiting(known)
	}
	w.held = held
	return nil
}

// failing returns for how long contacts have been failing.
func (w *waiter) failing(now time.Time) time.Duration {
	if w.fault == nil {
		return 0
	}
	return now.Sub(w.faulty)
}

func (w *waiter) failed(start time.Time, err error) {
	if w.fault == nil {
		w.faulty = start
	}
	w.fault = err
	if w.req.Failing != nil {
		w.req.Failing(w.faulty, err)
	}
}

func (w *waiter) answered() {
	if w.fault != nil && w.req.Failing != nil {
		w.req.Failing(w.faulty, nil)
	}
	w.fault = nil
}

// last returns the result of the last contact.
func (w *waiter) last() error {
	if w.fault != nil {
		return w.fault
	}
	return w.held
}
