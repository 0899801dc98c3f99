package drivers

// Spread is what a [Driver] is, too, if its commands go to several servers, by the hash slot of their first key, as with a
// client of a Redis Cluster. One of them may be down, or hang, while the others are in order. Commands to different slots
// are kept apart then: they share no batch, do not wait for each other, and are not refused for each other's failures. In
// return there are more calls of Do at the same time, up to four for every sixteen slots in use.
//
// Waiters over such a driver poll: it must not be a [Subscriber], which says why.
//
// A driver that wraps one must be one as well, or a server that is down takes the locks on all others with it.
type Spread interface {
	Driver

	// Spread marks the driver. It does nothing and is not called.
	Spread()
}
