package redistest

import "go.uber.org/goleak"

// Lingering makes goleak ignore goroutines that clients leave behind for some seconds. Those of a cluster client of
// rueidis or valkey-go wait between two refreshes of the cluster's topology, and before they close unused connections.
// That of go-redis tries once a second to reach a server that is down, and notices only then that the client is closed.
func Lingering() (options []goleak.Option) {
	for _, client := range []string{"github.com/redis/rueidis", "github.com/valkey-io/valkey-go"} {
		for _, function := range []string{
			"(*call).LazyDo.func1",            // in 1.0.69
			"(*call).DelayDo.func1",           // in 1.0.79
			"(*clusterClient)._refresh.func3", // in 1.0.69
			"(*clusterClient)._refresh.func2", // in 1.0.79
			"(*clusterClient).redirectOrNew.func1",
		} {
			options = append(options, goleak.IgnoreAnyFunction(client+"."+function))
		}
	}
	return append(options, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
