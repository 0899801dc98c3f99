//go:build unix

package natstest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
)

// StartCluster runs a cluster of n servers until the test ends. It returns before they have elected a leader.
func StartCluster(tb testing.TB, n int) []*Server {
	tb.Helper()
	routes := make([]string, n)
	for i := range routes {
		routes[i] = "nats://" + free()
	}
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = Start(tb, "-n", fmt.Sprint("n", i), "--cluster_name", "test", "--cluster", routes[i],
			"--routes", strings.Join(routes, ","), "--no_advertise")
	}
	return servers
}

// free returns an address at which nobody listens. It is below the ports that the kernel assigns by itself, so that a
// server that was killed finds it free when it starts again.
func free() string {
	for {
		addr := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000))
		if l, err := net.Listen("tcp", addr); err == nil {
			_ = l.Close()
			return addr
		}
	}
}
