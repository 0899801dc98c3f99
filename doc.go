// Package locker provides distributed locks. The same program runs on one Redis server, behind sentinels, on a Redis
// Cluster, on a Redlock of several servers, on etcd, PostgreSQL, NATS, S3, DynamoDB, Kubernetes or MySQL, or on locks
// in files or in memory.
//
//	l := single.New(goredisdriver.New(rdb)) // or memory.New, redlock.New, or config.Open with a URL
//	defer l.Close()
//
//	err := locker.Do(ctx, l, "orders:42", func(ctx context.Context) error { // waits until ctx ends
//		lease, _ := locker.LeaseFrom(ctx)
//		return ship(ctx, 42, lease.Fence()) // this ctx ends if the lock is lost
//	})
//
// # Locker
//
// [Locker] is the interface that a program works with. Lock waits for a lock, and TryLock makes one attempt. [Do]
// locks, calls a function and unlocks. It gives the function a context that ends with the lock.
//
// [Middleware] such as middleware/logging, middleware/retry and middleware/tracing wraps a Locker; see [Wrap].
//
// # Lease
//
// A successful call returns a [Lease]. The store forgets the lock when its TTL ends, so a holder that has crashed does
// not block the others forever. The lease is renewed in the background for as long as the holder runs.
//
// If the store cannot be reached for longer than the TTL, the lease is lost. Its Done channel is then closed before
// another owner can acquire the lock. If the key is deleted or taken over by another owner, Done is closed at the next
// renewal.
//
// A lease is not a guarantee of exclusive access. A process may be paused by its garbage collector or its hypervisor,
// and go on working after its lease has ended. Where two holders at a time would do harm, pass the fencing token of
// [Lease.Fence] to the resource. Each acquisition of a key gets a greater token than the acquisitions before it. The
// resource must refuse every token that is smaller than the greatest one it has seen.
//
// A holder that can stop early learns from [Wanted] that others wait.
//
// # Options
//
// Each call takes options: [TTL], [NoRenewal], [Renewal], [MaxHold], [MinHold], [Patience], [Label],
// [NoLocalHandover] and [Caller]. [Defaults] sets them for all calls. [Lease.Extend] takes a TTL, too.
//
// # Constructors
//
// Functions that begin with New, in all packages, send nothing and return no error. If an argument or an option cannot
// be used, every call fails with an error that matches [ErrInvalid] and names it. A timeout or a pause of a store that
// is not positive is the default. What opens something, as config.Open does, returns an error. nil for a store, a
// client or a Locker panics when it is used.
//
// # Errors
//
// Every operation returns an [*Error], which names the operation and the key. Use errors.Is to compare it with
// [ErrHeld], [ErrUnavailable], [ErrLost] and the other sentinel errors.
//
// # Backends
//
// [Client] turns a store into a Locker. It waits, renews leases, notices losses and releases locks, so these work in
// the same way on every store. Package backend is what authors of stores implement.
//
// # More than one holder
//
// Package semaphore lets n holders have a key at a time, and package rwlock many readers or one writer.
//
// # Operation and instrumentation
//
// Package inspect is for operators: it shows the state of a lock, and takes a lock away from its owner. Package
// lockertrace has hooks for the events of an acquisition and of a lease, for metrics and tracing.
package locker
