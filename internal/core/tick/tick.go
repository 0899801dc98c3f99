// Package tick has what package once tells a store about the tick that it claims. It is in the context of the call,
// because that passes through all middleware.
package tick

import (
	"context"
	"strings"
	"time"
)

// Tick is a tick that a call wants to claim by acquiring its lock.
type Tick struct {
	Job string    // the key of the job
	At  time.Time // a whole millisecond

	// Until is when the window and the skew are over. What was granted when a clock of any caller showed that, or later,
	// is released without having been used.
	Until time.Time

	// Drop is later by the skew: when a clock shows that, all others show Until.
	Drop time.Time

	Now func() time.Time // the wall clock of the caller
}

type key struct{}

// With returns a context for the calls that acquire the lock of t.
func With(ctx context.Context, t *Tick) context.Context { return context.WithValue(ctx, key{}, t) }

// From returns the tick that ctx belongs to, if lock is the name of a lock of it, and nil otherwise. It is another name
// if the lock is made of several, as a permit. Its job may be another one than that of the call: middleware may have
// put something before the name.
func From(ctx context.Context, lock string) *Tick {
	t, _ := ctx.Value(key{}).(*Tick)
	job, at, ok := Parse(lock)
	if t == nil || !ok || !at.Equal(t.At) {
		return nil
	}
	of := *t
	of.Job = job
	return &of
}

const layout = "2006-01-02T15:04:05.999Z"

// Name returns the name of the lock of a tick. No two ticks of all jobs have a name in common.
func Name(job string, at time.Time) string { return job + "@" + at.UTC().Format(layout) }

// Parse is the reverse of Name.
func Parse(lock string) (job string, at time.Time, ok bool) {
	end := strings.LastIndexByte(lock, '@')
	if end <= 0 {
		return "", time.Time{}, false
	}
	at, err := time.Parse(layout, lock[end+1:])
	return lock[:end], at, err == nil && Name(lock[:end], at) == lock
}
