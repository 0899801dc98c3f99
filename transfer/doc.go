// Package transfer passes a lease on from one process to another, in a text: from one step of a pipeline to the next,
// or from one version of a program to the one that replaces it.
//
//	text, err := transfer.Export(ctx, lease, 10*time.Minute) // the lease has ended
//	…                                                        // hand over text.Secret()
//	text, err := transfer.Parse(secret)
//	lease, err := transfer.Resume(ctx, l, text)              // in any process
//
// Meanwhile the lock is taken: it cannot be acquired, and those that wait for it go on waiting. Nobody renews it, so
// it becomes free if nobody resumes it in time. At most one lease comes of a text. It has a fencing token of its own,
// greater than the last one, so a resource that compares tokens, as with package fence, refuses what the first process
// has still under way.
//
// The text has the key and an owner value that the store has got from Export. It says nothing that Resume would
// believe: not how long the lock lasts, nor its token. It is a secret, because whoever has it can take the lock, and
// release it. It does not tell who exported it, and is not signed.
//
// # What becomes of the rest
//
//   - Those that wait in the store stay in their places, and come when the new lease is unlocked. Who waits in the
//     same process waits in the store from then on: a lock that is passed on is not handed over, and neither is one
//     that was resumed.
//   - The label stays that of the exporter until the lock is resumed, and is that of [Resume] then.
//   - [locker.MinHold] makes the text last for as long as it demands. Whoever resumes the lock says how long it has to
//     stay taken from then on. [locker.MaxHold] ends with the lease, too.
//   - [locker.Wanted] of the new lease tells of those that have been waiting.
//   - While a [locker.Client] drains, Export works, and Resume is refused with [locker.ErrDraining]. A Resume that was
//     under way may use the text up.
//   - Package inspect shows the lock as held, and releases it by force.
//
// The store has to state Export of its [backend.Capabilities]: [locker.As] finds a [backend.Capable]. On a store that
// does not state CountsTime, the time of the text is over for those who have watched the lock for so long. Another
// process resumes it even later, if nobody has taken it meanwhile.
package transfer
