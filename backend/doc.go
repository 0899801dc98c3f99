// Package backend is the contract between package locker and the stores of locks. It is for authors of stores, as
// database/sql/driver is for authors of drivers; programs that use locks need nothing of it.
//
// A store is a [Backend]: three methods, each of which makes one attempt and takes and returns plain data. A
// locker.Client makes a Locker of it. The Client waits, renews leases, notices losses and releases locks, so these work
// in the same way on every store.
//
//	func New(…) *locker.Client { return locker.NewClient(&store{…}) }
//
// What else a store can do, it says by optional interfaces that it implements ([Queuer], [Notifier], [ManyAcquirer],
// [LossNotifier], [WantedNotifier], [Verifier], [Binder], and those of package inspect), and by its [Capabilities].
// What it does not say, it cannot do.
//
// Errors are those of package locker. The comments name them without the package: ErrHeld is locker.ErrHeld, and a
// *HeldError is a *locker.HeldError. Client, Lock, Verify and the options are of package locker, too.
//
// A store that can compare and swap one record needs three smaller methods, and package record. The suites of package
// conformance check all rules.
package backend
