package drivers

// Cluster is an optional interface that may be implemented by a [Driver] that sends commands to several servers, by the
// hash slot of their first key, as a client of a Redis Cluster does. If not, all commands may share batches, so that
// one server that is down makes the locks on all servers fail.
//
// With Cluster, commands are kept apart by groups of sixteen neighbouring slots: commands of different groups share no
// batch, do not wait for each other, and do not fail because of each other. In return there are more concurrent calls
// of Do, up to four for each group in use. All keys of one command have the same slot.
//
// A driver that implements Cluster must not implement [Subscriber]. Waiters poll, unless it implements
// [ShardSubscriber]. A driver that wraps a Cluster must implement Cluster as well.
type Cluster interface {
	Driver

	// Cluster marks the driver. It does nothing and is not called.
	Cluster()
}
