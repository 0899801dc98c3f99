// Package lockkube elects the leader of an operator by a lock of any [locker.Locker], and not by the API server: a
// [Lock] is a resourcelock.Interface of client-go, which controller-runtime takes, too.
//
//	lock := lockkube.New(l, "my-operator", "")
//	mgr, err := manager.New(config, manager.Options{
//		LeaderElection:                      true,
//		LeaderElectionResourceLockInterface: lock,
//		LeaderElectionReleaseOnCancel:       true, // if the program exits when Start has returned
//	})
//	if err != nil {
//		return err
//	}
//	if err := mgr.Add(manager.RunnableFunc(lock.AwaitLoss)); err != nil {
//		return err
//	}
//	return mgr.Start(ctx)
//
// l is of a store that all candidates share. Without controller-runtime, lock is the Lock of a LeaderElectionConfig,
// whose Coordinated does not work here, since the API server has a part in that. Close l when the elector has ended.
// With Drain of l before that, [Lock.AwaitLoss] of the leader returns, and so ends the manager. A candidate that does
// not lead learns nothing of it: end its context.
//
// A candidate leads while it holds the lock of the key. The TTL of the lock is the LeaseDuration, in whole seconds. The
// elector extends it once per RetryPeriod, and nothing else does: an elector that hangs loses the lock, as it would
// lose its record.
//
// # What is promised
//
// Only who holds the lock leads; docs/safety.md has the assumptions. A leader that cannot renew stops when
// RenewDeadline has passed, and must not lead after the end of its lease. Therefore LeaseDuration must be longer than
// RetryPeriod, RenewDeadline and a request together, by a hundredth for the clocks. The defaults of 15 s, 2 s and 10 s
// leave almost 3 s for the request. If it is too short, renewals soon fail with an error that says so, and the
// candidate stops leading.
//
// Each term has a fencing token, which grows: that of [Lock.Lease]. Pass it to what the leader works on, which must
// refuse smaller ones. A process that stands still may go on as a leader when another one leads already, and no elector
// prevents that.
//
// A leader that ends releases the lock with LeaderElectionReleaseOnCancel, or ReleaseOnCancel of client-go. Otherwise
// the lock ends with its TTL. The others ask for it once in 1 to 2.2 RetryPeriods.
//
// # What happens on a loss
//
// Renewals fail, and the candidate does not get the lock again in the same term. The elector notices only that they
// fail, and goes on until RenewDeadline: meanwhile another candidate may lead, if the lease was deleted or taken away
// in the store, or the process stood still. [Lock.AwaitLoss] returns sooner, and ends the manager in the example above.
// In a LeaderElectionConfig it ends the context of the work:
//
//	OnStartedLeading: func(ctx context.Context) {
//		ctx, cancel := context.WithCancelCause(ctx)
//		go func() { cancel(lock.AwaitLoss(ctx)) }()
//		work(ctx)
//	}
//
// A program that goes on with another elector may use the same Lock. After a loss, it waits for a LeaseDuration and a
// second before it leads again.
//
// # What happens after kill -9
//
// The lock ends a LeaseDuration after the last renewal, and the candidate that asks first leads.
//
// # What happens while the store of the locks is down
//
// The leader goes on until its RenewDeadline, and then stops. Nobody leads until the store is back. A leader whose
// store is back before that goes on.
//
// # What followers know
//
// GetLeader and OnNewLeader have the identity of the leader, if the store keeps labels, and otherwise the beginning of
// its token. LeaderTransitions are not counted. RecordEvent does nothing.
//
// # By package election
//
// If a part of a program needs a leader and its controllers do not, election.Run beside the manager is simpler: it
// waits in the queue of the store, ends the context of the work with the lock, and campaigns again after a loss.
package lockkube
