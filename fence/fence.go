// Package fence lets the resource that a lock protects refuse a holder that is late.
//
// A process may be stopped at any moment, and go on when its lock has had another holder for long. No store of locks
// can prevent its write: only the resource can. It keeps the greatest fencing token that it has seen, and refuses
// smaller ones. For that, a holder enters the resource before it reads: it raises the token there, so that no earlier
// holder can write any more, and what it reads stays true. When it writes, the resource checks that nobody has entered
// since.
//
// [SQL] does so in a database, in the transaction that writes:
//
//	var fences = fence.SQL{Dialect: fence.PostgreSQL}
//
//	err := locker.Do(ctx, l, "account:42", func(ctx context.Context) error {
//		lease, _ := locker.LeaseFrom(ctx)
//		return fences.InTx(ctx, db, fence.Of(lease), func(ctx context.Context, tx *sql.Tx) error {
//			… // read and write
//		})
//	})
//
// It needs no clock, and nothing of the store but its tokens. docs/fencing.md compares it with a transaction that is
// bound to the lock, as postgreslock.InTx binds it, and has the proof. [Redis] does the same for values in a Redis.
// Where the resource is behind a service, [Transport] and [HTTP] carry the tokens there.
package fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/golocker/locker"
)

// Errors of this package match one of these, or come from the database.
var (
	// ErrStale says that another holder has entered the resource since: the lock was lost, and nothing was written.
	// The error is a [*StaleError].
	ErrStale = errors.New("the fencing token is stale")

	// ErrNotEntered says that the resource has not seen the token that is checked: nobody has entered with it, or the
	// resource was restored from a copy that is older.
	ErrNotEntered = errors.New("the fencing token has not entered the resource")

	// ErrUnknown says that a transaction may have been committed or not, because the answer to COMMIT did not come, or
	// because it ended before its check; or that a script of Redis may have been executed. Enter the resource again
	// before you look, with the lock still held or with a new one: then it stays as it is.
	ErrUnknown = errors.New("it is not known whether anything was written")

	// ErrNoToken says that a lease has no token that orders its holders: the store issues none, or others hold the key
	// at the same time, as with permits and shared locks.
	ErrNoToken = errors.New("no fencing token")
)

// StaleError is an [ErrStale]: the resource has seen a greater token than that of the holder.
type StaleError struct {
	Resource string
	Token    uint64 // of the holder
	Seen     uint64 // by the resource

	// Ahead is true if the store proves that the holder still has its lock. Then the resource is ahead of the store's
	// tokens, as it is after a change to another store: raise them past Seen, by "locker tokens raise".
	Ahead bool
}

func (e *StaleError) Error() string {
	s := fmt.Sprintf("fence: %q: %v: %d, and the resource has seen %d", e.Resource, ErrStale, e.Token, e.Seen)
	if e.Ahead {
		s += fmt.Sprintf(", although the lock is held: raise the tokens of its store past %d", e.Seen)
	}
	return s
}

func (e *StaleError) Unwrap() error { return ErrStale }

// Hold is a resource, and the fencing token with which a holder of its lock uses it. [Of] makes the holds of a lease.
// A program that has only the token, such as one that "locker run" has started, writes them itself. So does one that
// holds a permit, for a resource that belongs to the permit's slot alone.
type Hold struct {
	Resource string // not empty
	Token    uint64 // not 0, and in SQL at most math.MaxInt64

	lease locker.Lease // nil if it is not known
	err   error        // why the lease has no token for it
}

// Of returns the holds of lease, one for each of its locks. Resources are called like the keys of the locks. That of a
// single lock may be given another name; of several locks, change the Resource of each Hold. Functions that are given
// the holds fail with [ErrNoToken] if the lease is a permit or a shared lock, whose holders overlap, or if its store
// issues no tokens.
func Of(lease locker.Lease, resource ...string) []Hold {
	keys, token := []string{lease.Key()}, func(string) uint64 { return lease.Fence() }
	if all, ok := locker.LeaseAs[*locker.AllLease](lease); ok && lease.Fence() == 0 {
		keys, token = all.Keys(), all.FenceOf
	}
	names, err := keys, error(nil)
	if len(resource) == 1 && len(keys) == 1 {
		names = resource
	} else if len(resource) > 0 { // in which order?
		err = fmt.Errorf("fence: %d names of resources for %d locks: %w", len(resource), len(keys), locker.ErrInvalid)
	}
	if o, ok := locker.LeaseAs[interface{ Overlaps() bool }](lease); ok && o.Overlaps() {
		err = fmt.Errorf("fence: %q: %w: others may hold it, too, so tokens order nobody", lease.Key(), ErrNoToken)
	}
	holds := make([]Hold, len(keys))
	for i := range keys {
		holds[i] = Hold{Resource: names[i], lease: lease, err: err}
		if err == nil {
			holds[i].Token = token(keys[i])
		}
	}
	return holds
}

// sorted returns valid holds in the order of their resources, so that no two callers wait for each other in a circle.
func sorted(holds []Hold) ([]Hold, error) {
	if len(holds) == 0 {
		return nil, fmt.Errorf("fence: no hold: %w", locker.ErrInvalid)
	}
	for _, h := range holds {
		switch {
		case h.err != nil:
			return nil, h.err
		case h.Resource == "":
			return nil, fmt.Errorf("fence: a resource without a name: %w", locker.ErrInvalid)
		case h.Token == 0:
			return nil, fmt.Errorf("fence: %q: %w: the store issues none", h.Resource, ErrNoToken)
		}
	}
	holds = slices.Clone(holds)
	slices.SortFunc(holds, func(a, b Hold) int { return cmp.Compare(a.Resource, b.Resource) })
	for i := range holds[1:] {
		if holds[i].Resource == holds[i+1].Resource {
			return nil, fmt.Errorf("fence: %q is given twice: %w", holds[i].Resource, locker.ErrInvalid)
		}
	}
	return holds, nil
}

// stale returns the error of a hold whose resource has seen a greater token.
func (h Hold) stale(ctx context.Context, seen uint64) error {
	ahead := h.lease != nil && locker.Verify(ctx, h.lease) == nil
	return &StaleError{Resource: h.Resource, Token: h.Token, Seen: seen, Ahead: ahead}
}

// compare compares the token of the hold with what the resource has seen.
func (h Hold) compare(ctx context.Context, seen uint64) error {
	switch {
	case seen > h.Token:
		return h.stale(ctx, seen)
	case seen < h.Token:
		return fmt.Errorf("fence: %q: %w: %d, and the resource has seen %d", h.Resource, ErrNotEntered, h.Token, seen)
	}
	return nil
}
