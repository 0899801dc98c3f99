package single

import (
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// DefaultReplicasTimeout is how long to wait for replicas unless [WaitReplicas] says otherwise.
const DefaultReplicasTimeout = time.Second

// WaitReplicas makes a lock count only after n replicas have confirmed it. Each acquisition and each extension is
// followed by the command WAIT, for at most timeout; zero means [DefaultReplicasTimeout]. Calls that happen at the same
// time share one WAIT. Releases do not wait. With n = 0, the default, nothing waits.
//
// If fewer replicas confirm in time, the error matches locker.ErrNotReplicated and locker.ErrUnavailable. An
// acquisition is undone. An extension does not count, and the lease keeps its old end. The time spent waiting counts
// against the validity, so timeout should be much shorter than the TTL. A TryLock that finds the lock held may wait,
// too.
//
// This makes it less likely that a failover hands a lock to a second holder, and does not rule it out. docs/redis.md
// says what is left open. The larger n is, the less is left: if n is the number of replicas, whichever of them is
// promoted has the lock. But if one of n is down, no lock can be acquired.
//
// The Redis client must be connected to the master itself. A proxy that spreads the commands of one connection over
// several would make WAIT answer for another connection. The client's own read time-out must be longer than timeout.
// With a client of a Redis Cluster, every call fails with locker.ErrInvalid, because WAIT is not supported behind a
// cluster.
func WaitReplicas(n int, timeout time.Duration) Option {
	if timeout <= 0 {
		timeout = DefaultReplicasTimeout
	}
	return func(o *options) { o.Replicas.Want, o.Replicas.Timeout = n, timeout }
}

// misuse returns the reason why the options cannot be used, or nil.
func (o *options) misuse(d drivers.Driver) error {
	_, cluster := d.(drivers.Cluster)
	switch n := o.Replicas.Want; {
	case o.Guard != 0 && o.Guard < locker.MinTTL:
		return fmt.Errorf("%w: a guard of %v is below the minimum of %v", locker.ErrInvalid, o.Guard, locker.MinTTL)
	case n < 0:
		return fmt.Errorf("%w: WaitReplicas(%d): the number of replicas must not be negative", locker.ErrInvalid, n)
	case n > 0 && cluster:
		return fmt.Errorf("%w: WaitReplicas: WAIT is not supported behind a cluster", locker.ErrInvalid)
	}
	return nil
}
