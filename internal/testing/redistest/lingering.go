package redistest

import "go.uber.org/goleak"

// Lingering has goleak bear with what a rueidis client of a cluster leaves behind: it lets its pauses of some seconds run
// out, between two looks at what the cluster is like, and before it closes connections that it no longer uses.
func Lingering() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient).redirectOrNew.func1"),
	}
}
