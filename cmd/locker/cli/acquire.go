//go:build unix

package cli

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// acquire waits for the lock until a signal arrives.
func (h *holder) acquire(ctx context.Context, l locker.Locker) error {
	ctx, cancel := context.WithCancel(h.trace(ctx))
	defer cancel()
	type result struct {
		lease locker.Lease
		err   error
	}
	done := make(chan result, 1)
	go func() {
		lease, err := h.lock(ctx, l)
		done <- result{lease, err}
	}()
	var ended error
	for {
		select {
		case r := <-done:
			h.lease = r.lease
			if ended == nil {
				ended = h.pendingEnd()
			}
			switch {
			case ended == nil:
				return h.refused(r.err)
			case r.lease != nil: // the lock was granted at the same moment
				return h.release(ended)
			}
			return ended
		case sig := <-h.signals:
			switch {
			case sig == unix.SIGTSTP:
				stop()
			case slices.Contains(ending, sig) && ended == nil:
				ended = endedBy(sig)
				cancel()
			}
		}
	}
}

// refused adds advice to the error of Lock.
func (h *holder) refused(err error) error {
	if err == nil {
		return nil
	}
	if !errors.Is(err, locker.ErrHeld) || errors.Is(err, locker.ErrUnavailable) {
		return err
	}
	next := "try again later, or wait for it with --wait"
	if h.opts.maxWait > 0 {
		next = "try again later, or wait longer with --wait"
	}
	return &exitError{exitHeld, err, next}
}

func (h *holder) lock(ctx context.Context, l locker.Locker) (locker.Lease, error) {
	opts := []locker.Option{locker.TTL(h.opts.validity), locker.MinHold(h.opts.minHold), locker.MaxHold(h.opts.maxHold)}
	one, all := l.Lock, locker.LockAll
	switch wait := h.opts.maxWait; {
	case wait == 0:
		one, all = l.TryLock, locker.TryLockAll
	case wait > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	if len(h.opts.keys) == 1 {
		return one(ctx, h.opts.key, opts...)
	}
	lease, err := all(ctx, l, h.opts.keys, opts...)
	if err != nil {
		return nil, err // and not a nil *AllLease
	}
	return lease, nil
}

// fences are the tokens of the locks, one in each line.
func (h *holder) fences() string {
	all, several := h.lease.(*locker.AllLease)
	if !several {
		return strconv.FormatUint(h.lease.Fence(), 10)
	}
	var tokens []string
	for _, key := range all.Keys() {
		tokens = append(tokens, strconv.FormatUint(all.FenceOf(key), 10))
	}
	return strings.Join(tokens, "\n")
}

// trace informs the holder of what happens to the lock. The hooks run on goroutines of the Client.
func (h *holder) trace(ctx context.Context) context.Context {
	return lockertrace.With(ctx, &lockertrace.Trace{
		Waiting: func(w lockertrace.Waiting) {
			h.app.note("waiting for %q: %v", h.opts.key, &locker.HeldError{Remaining: w.Remaining, Label: w.Label})
		},
		Renewed: h.renewal,
		InDoubt: func(err error) { h.app.note("%q could not be renewed, trying again: %s", h.opts.key, told(err)) },
	})
}

// renewal records a renewal, and wakes watch.
func (h *holder) renewal(r lockertrace.Renewal) {
	h.last.Store(&r)
	select {
	case h.renewed <- struct{}{}:
	default:
	}
}

// endedBy returns the exit code for a signal that arrives before the command is started.
func endedBy(sig os.Signal) error {
	n := int(sig.(syscall.Signal))
	return &exitError{code: exitSignal + n}
}

// pendingEnd returns the error for a signal that has already arrived, if it is one that ends the program.
func (h *holder) pendingEnd() error {
	for {
		select {
		case sig := <-h.signals:
			if slices.Contains(ending, sig) {
				return endedBy(sig)
			}
		default:
			return nil
		}
	}
}
