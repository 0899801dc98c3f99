package inspect

import (
	"iter"
	"time"
)

// Process is an optional interface that may be implemented by a locker.Locker that knows what its process has. It asks
// no store. Package lockdebug shows it over HTTP.
//
// locker.Client always implements Process. Use locker.As to find it behind middleware.
//
// Both methods take up little of the time of other calls, however much there is, and hold nothing up while the loop
// goes on: they read some at a time, as it goes on. They yield in any order. A lease that is there all the time comes
// once, or twice if the process gets another lease of that key meanwhile. One that comes or goes meanwhile may come.
type Process interface {
	// OwnLeases yields the leases that the process holds.
	OwnLeases() iter.Seq[OwnLease]

	// OwnWaits yields the keys that calls of Lock are waiting for, or are asking the store for.
	OwnWaits() iter.Seq[OwnWait]
}

// OwnLease is a lease that this process holds. Permits of a semaphore, readers and writers have names of their own.
type OwnLease struct {
	Key   string
	Owner string // the first characters of the owner's token, as in Inspection
	Label string
	Fence uint64
	Since time.Time // when the process asked for it; its callers may have handed it over to each other since
	Until time.Time // when it ends unless it is renewed
	Err   error     // of the last renewal; nil if it succeeded

	// Wanted says that others wait for the lock, as far as is known here: callers of this Locker always, and those of
	// other processes as locker.Wanted tells of them, if the program has asked it for this lease.
	Wanted bool

	Caller string // the function, file and line that asked for it, with the option locker.Caller; else empty
}

// OwnWait is the calls of this process that wait for a key.
type OwnWait struct {
	Key    string
	Calls  int       // how many there are. One of them asks the store for all, except for permits
	Since  time.Time // when the first of them began
	Holder string    // the label of the holder that was seen last; empty if it is not known
	Err    error     // of the last contact with the store; nil if it answered, or has not yet
	Caller string    // the function, file and line of the first call, with the option locker.Caller; else empty
}
