package audit

import "time"

// Version is the version of the lines. A field that is added does not change it. A reader ignores lines of a greater
// one.
const Version = 1

// Event is what a line tells.
type Event string

// The events. A line of the last three is about the log itself.
const (
	Acquired   Event = "acquired"       // a call has got the lock from the store
	HandedOver Event = "handed over"    // a call has got the lock from another call of its Client, without the store
	Refused    Event = "refused"        // a call has not got the lock
	Extended   Event = "extended"       // Extend, or a renewal, has ended: see Outcome
	Verified   Event = "verified"       // the store was asked whether the lock is still held: see Outcome
	Released   Event = "released"       // Unlock has ended: see Outcome
	Lost       Event = "lost"           // the lease has ended without Unlock: see Reason
	Forced     Event = "taken by force" // an operator has taken the lock from its owner

	Start   Event = "start"   // the log begins
	Dropped Event = "dropped" // lines did not fit into the buffer, and are missing before this one
	Close   Event = "close"   // the log ends, and no line of its process follows
)

// Outcome is the result of a call.
type Outcome string

// The outcomes.
const (
	OK       Outcome = "ok"
	Held     Outcome = "held"     // somebody else has the lock
	NotHeld  Outcome = "not held" // Unlock was told that the lock was no longer held
	Ended    Outcome = "lost"     // the lease is lost; Reason has why
	Unlocked Outcome = "unlocked" // the lease had been unlocked before
	Unknown  Outcome = "unknown"  // the store was not available, or the context ended
)

// Kind is what a lock is for.
type Kind string

// The kinds. On stores without groups, permits and the places of readers and writers are locks of their own, whose keys
// have a number after that of the program.
const (
	Plain       Kind = "lock"
	Permit      Kind = "permit"
	Shared      Kind = "shared"
	Upgradeable Kind = "upgradeable"
	Exclusive   Kind = "exclusive"
	Tick        Kind = "tick"
	Term        Kind = "term" // of package election; its number is the fencing token
)

// Line is one line of the log, a JSON object. Fields that do not apply are left out.
//
// A call has four times: when it was made and when it returned, by the wall clock and by the monotonic clock of its
// process. The latter counts nanoseconds since the log began. Nobody sets it, but on some systems it stands still while
// the machine sleeps.
type Line struct {
	Version int    `json:"v"`
	Process string `json:"process"` // random, of one log of one process
	Seq     uint64 `json:"seq"`     // from 1, without a gap unless lines are missing
	Event   Event  `json:"event"`

	Asked        time.Time     `json:"asked"` // of what is not a call, the same as Answered
	Answered     time.Time     `json:"answered"`
	AskedMono    time.Duration `json:"asked_mono"`
	AnsweredMono time.Duration `json:"answered_mono"`
	DeadlineMono time.Duration `json:"deadline_mono,omitempty"` // of the context of the call

	Store   string  `json:"store,omitempty"` // without secrets; the same for all that share it
	Key     string  `json:"key,omitempty"`
	KeyHash string  `json:"key_hash,omitempty"` // instead of Key: see HashKeys
	Kind    Kind    `json:"kind,omitempty"`
	Alone   bool    `json:"alone,omitempty"` // of a permit or a reader that is made of locks: nobody else has this one
	Try     bool    `json:"try,omitempty"`   // TryLock, and not Lock
	Auto    bool    `json:"auto,omitempty"`  // a renewal, and not Extend
	Outcome Outcome `json:"outcome,omitempty"`
	Reason  string  `json:"reason,omitempty"` // a locker.LostReason
	Err     string  `json:"err,omitempty"`

	Grant  string `json:"grant,omitempty"`  // random; the leases that are handed over have one
	From   string `json:"from,omitempty"`   // of an upgrade: the grant of the upgradeable lock
	Fence  uint64 `json:"fence,omitempty"`  // the fencing token
	First  uint64 `json:"first,omitempty"`  // the block of tokens of the grant begins with it
	Tokens int    `json:"tokens,omitempty"` // and has so many
	Limit  int    `json:"limit,omitempty"`  // how many permits there are
	Slots  []int  `json:"slots,omitempty"`  // the numbers of the permits
	Label  string `json:"label,omitempty"`  // of the holder, also of Refused; of Start, host and process ID

	Until     time.Time     `json:"until,omitzero"` // the end of the validity
	UntilMono time.Duration `json:"until_mono,omitempty"`

	Missing uint64 `json:"missing,omitempty"` // how many lines were dropped
}
