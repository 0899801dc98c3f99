package inspect

import (
	"context"
	"iter"
	"time"
)

// Lister is an optional interface that may be implemented by a backend.Backend that can list its locks. If not, List of
// its Client yields an error that matches errors.ErrUnsupported. It is for operators, not for programs that use locks.
//
// locker.Client always implements Lister. Use locker.As to find it behind middleware.
type Lister interface {
	// List yields the locks whose keys begin with prefix and that are not free, in any order. It asks the store in small
	// steps, as the loop goes on, and changes nothing. What it needs of memory does not grow with the number of locks,
	// unless the page of the store says so.
	//
	//   - A lock that somebody has for all of the listing is in it. One that is acquired or released meanwhile may be.
	//   - A lock was as it is shown when it was read. It may be listed twice, if the store is changing its servers, for
	//     example, and then the later one is true.
	//   - The names of locks are those that the store knows: a permit, a reader and a tick have names of their own, which
	//     begin with a brace or with their key. A group of permits, or of readers and writers, is one lock with Holders.
	//   - An error ends the listing: it comes with a zero Listed. What came before it is true. Without an error, the
	//     listing is complete.
	//   - It ends within milliseconds of the end of ctx, with an error.
	//
	// Errors match locker.ErrUnavailable if the store, or too many of its nodes, did not answer.
	List(ctx context.Context, prefix string) iter.Seq2[Listed, error]
}

// Listed is a lock of a listing.
type Listed struct {
	// Key is the key of the lock, as Inspect takes it, or only its beginning.
	Key string

	// Cut says that Key is the beginning of a key that is too long for the store to keep. Then the listing has it also if
	// it only may begin with the prefix.
	Cut bool

	// At is when the store was asked, by the clock of this process.
	At time.Time

	Inspection
}
