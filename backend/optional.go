package backend

import "context"

// ManyAcquirer is an optional interface that may be implemented by a [Backend] that can acquire several locks in one
// step. If not, LockAll and TryLockAll acquire them one after the other.
type ManyAcquirer interface {
	// AcquireMany makes one attempt to acquire the locks of reqs that c asks for. reqs have different keys, sorted, and
	// the same options. The rules of Acquire apply to each of them, and in addition:
	//
	//   - It acquires either all that c asks for or nothing, in one atomic step. Nobody sees a part of them held.
	//   - The grants are in the order of reqs, and nil for those that were not acquired.
	//   - If a lock is held by another owner, the error is an *Error that names its key, if it is known.
	//   - It does not overtake callers that wait for one of the locks: that lock counts as held. A store that states
	//     [Capabilities].Look need not know who waits.
	//   - If the error matches errors.ErrUnsupported, these locks cannot be acquired in one step, for example because
	//     they are on different servers, or because somebody waits for one of them. Nothing was acquired then, and the
	//     locks are acquired one after the other.
	AcquireMany(ctx context.Context, reqs []Request, c Choice) ([]*Grant, error)
}

// Choice says which of several locks [ManyAcquirer] acquires. The zero value stands for all of them. A backend gets
// another one only if it states [Capabilities].Some.
type Choice struct {
	// N is how many of the locks are wanted: the first ones that are free. 0 means all of them. If fewer are free, nothing
	// is acquired, and the error matches ErrHeld. All executions of a call together grant no more than N locks.
	N int

	// Gates are the keys of other locks. If one of them is held or waited for, nothing is acquired, and the error matches
	// ErrHeld and names that gate. A call that is executed twice is granted twice, also if a gate was taken in between.
	Gates []string

	// Spare is from how many locks on, which are free beside the N, the gates do not count. 0 means that they always
	// count.
	Spare int
}

// LossNotifier is an optional interface that may be implemented by a [Backend] that learns when a lock ends. If not,
// the Client learns of a loss by the next renewal.
type LossNotifier interface {
	// NotifyLoss calls lost when the store reports that req.Token no longer owns the lock. err matches ErrNotHeld, and is
	// preferably a *NotHeldError. req is the request of an Extend. A report may be late or missing, but never wrong: the
	// Client ends the lease, and does not ask again.
	//
	// NotifyLoss is active until stop is called. lost may be called once more after that. None of the functions blocks,
	// and stop does not call lost.
	NotifyLoss(req Request, lost func(err error)) (stop func())
}

// WantedNotifier is an optional interface that may be implemented by a [Backend] that learns when somebody begins to
// wait for a lock. If not, the Client learns it from the answers to Extend, see Request.Wanted, or not at all.
type WantedNotifier interface {
	// NotifyWanted calls wanted when another caller waits for the lock of req, or begins to. req is the request of an
	// Extend. A report may be late or missing. It may be repeated, and it may come from NotifyWanted itself.
	//
	// NotifyWanted is active until stop is called. wanted may be called once more after that. None of the functions
	// blocks, and neither stop nor wanted calls the other.
	NotifyWanted(req Request, wanted func()) (stop func())
}

// Exporter is an optional interface that may be implemented by a [Backend] whose locks can be passed on to another
// process; see package transfer. If not, that package refuses leases of the store. Its requests are about locks, and
// never about entries of a group.
type Exporter interface {
	// Export makes to the owner value of a lock, if req.Token is it. The lock stays taken for req.TTL from now, which may
	// be shorter than before, and keeps its label. From then on, no request of req.Token changes it.
	//
	//   - It compares and replaces in one atomic step.
	//   - It is idempotent: if to is the owner value already, it changes nothing, and the TTL stays that of the first.
	//   - It returns an error that matches ErrNotHeld, preferably a *NotHeldError, only if the store answered that neither
	//     owns the lock. After any other error, the lock has one of the two owner values, or ends with its TTL.
	//   - If its outcome is unknown, the Client releases the lock with req.Token first, and with to if that does not own
	//     it, and may export it from to. Such a request is otherwise like the one for req.Token.
	//   - It returns within milliseconds of the end of ctx.
	Export(ctx context.Context, req Request, to string) error

	// Resume makes req.Token the owner value of a lock, if from is it, and issues a fencing token, all in one atomic
	// step. What Acquire says of the Grant, of req and of clean-up holds for Resume, too. In addition:
	//
	//   - It never acquires a free lock. It passes nobody in a queue, because the lock was not free.
	//   - It returns an error that matches ErrNotHeld only if the store answered that neither from nor req.Token owns the
	//     lock. The Reason is LostTakenOver if another owner has it.
	//   - If it is executed twice, both executions return the same grant, and the TTL is that of the first.
	//   - To undo an attempt whose outcome is unknown, the backend frees the lock if req.Token or from owns it, in one
	//     step, or in two of which the first is about from. So the request finds nothing if it is executed later, and
	//     nobody can use from again.
	//   - While Acquire is refused because the store may have forgotten locks, so is Resume.
	Resume(ctx context.Context, req Request, from string) (Grant, error)
}

// Verifier is an optional interface that may be implemented by a [Backend]. If not, Verify returns an error that
// matches errors.ErrUnsupported, and sends nothing.
type Verifier interface {
	// Verify proves that a lock still belongs to req.Token, and that req.Fence is the greatest token of its key.
	//
	//   - It returns nil only if the store has proved this with answers to requests of this call. The proof must not
	//     depend on the time: locks may have expired early, and messages may have been late.
	//   - It changes nothing.
	//   - It returns an error that matches ErrNotHeld, preferably a *NotHeldError, only if the store answered that
	//     req.Token does not own the lock. Any other error means that nothing was proved.
	//   - It returns within milliseconds of the end of ctx.
	Verify(ctx context.Context, req Request) error
}

// Binder is an optional interface that may be implemented by a [Backend]. If not, Bind returns an error that matches
// errors.ErrUnsupported, and sends nothing.
type Binder interface {
	// Bind binds to, which the caller of the function Bind has passed, to the lock: a transaction, for example, that
	// takes effect only while the lock belongs to req.Token.
	//
	//   - It returns an error that matches errors.ErrUnsupported if it does not know the type of to. It has done nothing
	//     then.
	//   - It returns an error that matches ErrNotHeld, preferably a *NotHeldError, only if the store answered that
	//     req.Token does not own the lock. Any other error means that nothing is known.
	Bind(ctx context.Context, req Request, to any) error
}
