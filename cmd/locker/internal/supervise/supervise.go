// Package supervise runs a command under a lock or during the terms of an election. The command ends before another
// owner can get the lock, even if this process is killed, is stopped, or hangs.
//
// The holder, which has the lock, starts the guard, which runs the command. Both are processes of the same program.
package supervise

import (
	"context"
	"time"

	"github.com/golocker/locker"
)

// What happens to the command if the lock is lost, or is about to end without a renewal.
const (
	Term   = "term"   // SIGTERM, then SIGKILL after the grace period, before the lock ends
	Kill   = "kill"   // SIGKILL
	Notify = "notify" // only the end of LOCKER_FD: the command handles the loss itself
)

// Variables are those that the command gets in its environment.
var Variables = []string{"LOCKER_KEY", "LOCKER_FENCE", "LOCKER_SLOT", "LOCKER_STORE", "LOCKER_TICK", "LOCKER_FD"}

// Options say which command runs, under which locks.
type Options struct {
	Keys     []string
	Key      string        // what messages call the keys
	Store    string        // the name of the backend, for the command
	Validity time.Duration // the lease time; for a tick the least one
	MinHold  time.Duration
	MaxHold  time.Duration // 0: none
	MaxWait  time.Duration // for the lock; negative: forever
	Grace    time.Duration // between SIGTERM and SIGKILL
	Tick     time.Time     // for which the command runs, at most once on all machines; zero: it is not for a tick
	OnLost   string        // Term, Kill or Notify

	Path    string   // of the command
	Args    []string // its argv
	Environ []string // its environment, to which variables about the lock are added
	NoInput bool     // its standard input is empty

	// Take acquires the lock in the place of Lock, if it is not nil. Pass passes it on in the place of Unlock if all has
	// gone well, and ends the lease in any case.
	Take func(ctx context.Context, l locker.Locker, opts ...locker.Option) (locker.Lease, error)
	Pass func(lease locker.Lease) error

	Note    func(format string, args ...any) // tells the user what happens
	Explain func(err error) string           // returns a text that says what to do about an outage, for Elect
}

// Margin is how long before the end of the lease SIGKILL is sent, because processes take some time to end.
func (o *Options) Margin() time.Duration {
	span := o.Validity
	if o.MaxHold > 0 {
		span = min(span, o.MaxHold)
	}
	return min(span/20, 500*time.Millisecond)
}
