package record

import (
	"context"
	"errors"
	"time"
)

// ErrConflict means that a record is not the one that Create or Replace expected. It is an error of a [Store].
var ErrConflict = errors.New("the record is not the expected one")

// Store is what a [Backend] keeps its locks in: records, each with a name, a text and a version, that can be replaced
// on the condition that their version is still the one that was read. A Store knows nothing of locks.
//
// The promises of the locks are those of the Store, so it has to keep these rules:
//
//   - One step. Create and Replace compare and write in one atomic step of the store. To read, compare and then write
//     is not enough, even if the time between is short.
//   - One order. A call that begins after another one has returned sees its effect, whichever process has made it. So
//     a read by a replica, a cache or a follower must not be older than the last write that has ended. If reads are
//     older, exclusion and tokens last, but Verify proves nothing, and an attempt that failed may leave its lock
//     behind.
//   - Versions. A version is a text that is not empty, and means the same to all processes. Two different texts that a
//     record has had, at whatever times, never have the same version, not even after a restart of the store. The same
//     text may have the same version again, as with an ETag of S3: a Backend never writes the same text twice. So a
//     hash of the text is a version for a store that has none, or whose own begin anew when a record is deleted and
//     made again: Replace reads, compares the hash, and writes on the condition of the store's own version. The version
//     that Create and Replace return is that of the text that they have written, and not one that was read afterwards:
//     it may be that of the next writer.
//   - Conflicts. An error matches [ErrConflict] only if the store has answered that the condition does not hold. An
//     answer such as "busy" or "try again" is no conflict. A record that does not exist is a conflict for Replace,
//     which must not create it. If a client library repeats a request whose answer was lost, and reports the success
//     of the first one as a conflict, that is allowed: the Backend reads the record.
//   - Every other error of Create and Replace leaves the outcome open: the request may have been executed, or may be
//     executed later, however late. A Store need not find out. It need not repeat requests either.
//   - Contexts. Each method returns within milliseconds of the end of its context, whatever the store does. If the
//     context has ended already, it fails and sends nothing. The context always has a deadline; see [Timeout].
//   - Nobody else writes. Nothing deletes or changes the records but Backends: no lifecycle rule, no TTL, no restored
//     backup, no second system beside the first. See the package about what a deleted record means.
//
// A name has 1 to 200 bytes, which are lower-case letters, digits, "-", "_" and "=". So it is also good for stores that
// ignore case, and for files. A text is JSON in UTF-8, of less than 32 KiB, and not empty. That of one lock has less
// than 1 KiB. A Store may return it with other spaces, or with its members in another order.
//
// All methods may be called concurrently. If a Store is also an io.Closer, it is closed together with its Backend.
// Package recordtest checks these rules, as far as a test can.
type Store interface {
	// Get returns the text of a record, and its version. If there is no record, the version is empty, and the error nil.
	Get(ctx context.Context, name string) (text []byte, version string, err error)

	// Create stores a record if there is none of that name, and returns its version. If there is one, the error matches
	// ErrConflict.
	Create(ctx context.Context, name string, text []byte) (version string, err error)

	// Replace stores another text for a record if its version is still the given one, and returns the new version. If
	// not, or if there is no record, the error matches ErrConflict.
	Replace(ctx context.Context, name, version string, text []byte) (newVersion string, err error)
}

// Clock is an optional interface of a [Store] whose processes all read one clock, because they run on one machine. Each
// record of such a Store says when its length is over on that clock. So a process that has never seen the record of a
// holder that has crashed need not watch it: TryLock succeeds as soon as the length is over.
//
// The clock must be the one by which package time counts monotonic time on this machine: holders count by that. If it
// stands still while the machine is suspended, so must this one. Otherwise others take locks on which their holders
// rely after the suspension.
type Clock interface {
	// Clock returns the time since the clock began, and the id of the clock. If the id in a record is another one, the
	// record is of another machine, or of this one before a restart. It cannot be known whether its owner is dead, so the
	// record's length counts from when a process of this clock tries to take the lock for the first time, for all of them.
	//
	// A process that reads another clock while that one goes on, on the same machine, must return an empty id, which means
	// that there is no clock. It then watches, as it does on other stores. The same is true if the id has more than 64
	// bytes or is not UTF-8, and if the time is not more than 0 or above 130 years.
	//
	// Clock is called for each record that is read or written, so the id may be looked up each time. A process may be
	// moved to another clock, as by a checkpoint. Clock may be called concurrently.
	Clock() (id string, now time.Duration)
}

// ServerClock is an optional interface of a [Store] that tells, with its answers, what time it is for the store.
// Records then say from which time on others may take the lock. So a process that has never seen the record of a holder
// that has crashed need not watch it: TryLock succeeds as soon as an answer tells such a time.
//
// The Store calls [Tell] with the context of each request. The time is that of a machine of the store, and never of
// this one: of some moment after the request was sent, and before Get, Create or Replace returns. An answer that a
// cache may have kept has no such time. A holder relies on its lock only if the answers to its writes tell times, so
// Create and Replace need them too, at least if they succeed; without, locks are watched, as on other stores.
type ServerClock interface {
	// ServerClock returns the unit of the times: a time is the clock's, rounded down to it. A whole second is usual for
	// the header Date of an answer in HTTP. skew is by how much the clocks of the machines may differ, from each other and
	// from what they said before, as long as a lock is held. 0 means that nobody knows, and that the times are used only
	// if [ClockSkew] says more. With a resolution of 0, there is no clock. The answer is the same for the life of the
	// Store.
	ServerClock() (resolution, skew time.Duration)
}

// Lister is an optional interface of a [Store] that can list its records. Its Backend then is an inspect.Lister: it
// shows the locks of records. It is for operators, so it may be slow, but it must not make others slow.
type Lister interface {
	// List returns a page of the records whose names begin with prefix: the first one if from is empty, and otherwise the
	// one that follows the call that has returned it as next. If next is empty, the page is the last one. A page may have
	// no records. It has as many as one request to the store returns that is small enough for others to be served beside.
	//
	// All pages together have each record whose last write has ended before the first call, also if others write it
	// meanwhile. They may have a record twice. What the texts say is not older than the first call, and not older than
	// the call that returns them if they are of locks that are taken: a lock whose text is old may look as if its time
	// were over. A page of a snapshot therefore leaves out these texts.
	//
	// A Store that cannot list as it was made fails with an error that matches errors.ErrUnsupported.
	List(ctx context.Context, prefix, from string) (page []Listed, next string, err error)
}

// Listed is a record of a page. Without a text, the Backend asks Get for it.
type Listed struct {
	Name string
	Text []byte
}

// Biller is an optional interface of a [Store] whose requests cost money.
type Biller interface {
	// ListPrice says what a list of all records costs, in the words of an error message: "S3 bills a request for each
	// record". It is empty if it costs nothing. People are asked before they list such records.
	ListPrice() string
}

// Watcher is an optional interface of a [Store] that learns when records change. Waiters are then told to look, and
// look by themselves once in ten pauses of [Poll]. What they are told is a hint: they read the record, whatever it is.
type Watcher interface {
	// Watch calls changed when the record of that name may have changed, whoever has changed it. It also calls changed
	// when it begins to learn of changes, and each time that it does so again after an interruption, because changes may
	// have been missed. Renewals are changes, too: waiters count the time of a holder that has crashed from when they saw
	// the last one, unless the store has a clock. A call that is late, missing, doubled or wrong costs time or a request.
	// changed does not block.
	//
	// live reports whether changes are being learned of. If not, waiters look as on other stores, so a Store that cannot
	// watch at the moment, or has enough watches, returns functions that do nothing. Watch, live and stop do not wait for
	// the store, nor for a call of changed. Each watch ends with stop, of which changed may be called once more, and which
	// may be called after the Store was closed.
	Watch(name string, changed func()) (live func() bool, stop func())
}
