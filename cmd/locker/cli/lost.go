//go:build unix

package cli

import (
	"errors"
	"fmt"
	"time"
)

func (h *holder) lostBefore(err error) error {
	return &exitError{exitLost, fmt.Errorf("the command was not started: %w", err), "try again, with a longer --ttl"}
}

// killBy is the time by which the command must have ended, unless the lock is renewed.
func (h *holder) killBy() time.Time { return h.lease.Until().Add(-h.opts.margin()) }

// lose records why the command is being stopped.
func (h *holder) lose(err error) {
	if h.lost != nil {
		return
	}
	if err == nil {
		err = h.why()
	}
	h.lost = err
	done := "the command is being stopped"
	if h.opts.onLost == onLostNotify {
		done = "the command was notified"
	}
	h.app.note("%q: %v: %s", h.opts.key, err, done)
}

// why returns the reason for stopping the command before the end of the lease.
func (h *holder) why() error {
	switch last := h.last.Load(); {
	case last != nil && last.Err != nil:
		return fmt.Errorf("it could not be renewed in time: %w", last.Err)
	case h.opts.maxHold > 0:
		return fmt.Errorf("--max-hold %v is over", h.opts.maxHold)
	}
	return errors.New("locker was stopped, or was too slow to renew it")
}
