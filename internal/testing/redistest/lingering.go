package redistest

import "go.uber.org/goleak"

// Lingering makes goleak ignore goroutines that a rueidis client of a cluster leaves behind for some seconds. They wait
// between two refreshes of the cluster's topology, and before they close unused connections.
func Lingering() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).LazyDo.func1"),  // in 1.0.69
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"), // in 1.0.79
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient).redirectOrNew.func1"),
	}
}
