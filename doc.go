// Package locker gives a program distributed locks, whatever stands behind them.
//
// Code that needs a lock takes a [Locker] and calls Lock and Unlock. Which store that means is decided where the
// program is put together, by a constructor or by configuration:
//
//	l := memory.New()                                              // in this process, for tests and single binaries
//	l := single.New(goredis.New(rdb))                              // one Redis
//	l, err := config.Open(ctx, "redis+rueidis://host:6379?ttl=10s") // the same, chosen by a string
//
// # Using a lock
//
//	lease, err := l.Lock(ctx, "orders:42", locker.TTL(10*time.Second)) // waits until ctx ends
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//
// A lock here is a lease: the store forgets it after its TTL, so that a crashed holder does not block everybody for
// ever. While the holder lives, the lease is renewed in the background. If it is lost all the same (the store was
// unreachable for longer than the TTL, somebody deleted the key), [Lease.Done] is closed before anybody else can have
// the lock. [Do] does all of this in one call and gives the function a context that ends with the lock.
//
// # What a lock does not guarantee
//
// No lock service can stop a process that is paused (by its garbage collector, its hypervisor, a laptop lid) from
// going on after its lease has ended. Where two holders at once would do harm, let the resource check the fencing
// token: [Lease.Fence] grows with every acquisition of a key, and a resource that refuses tokens lower than the highest
// it has seen refuses the late one.
//
// # The parts
//
// [Locker] and [Lease] are what callers and middleware see. [Backend] is what a store implements: one attempt each of
// acquire, extend and release. [Client], between them, is the only implementation of waiting, renewing, noticing loss
// and releasing, so every store behaves the same.
package locker
