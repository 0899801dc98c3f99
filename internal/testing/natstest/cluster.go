//go:build unix

package natstest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/golocker/locker/internal/testing/testserver"
)

// nowhere is an address at which nobody listens.
const nowhere = "127.0.0.1:1"

// StartCluster runs a cluster of n servers until the test ends. It returns before they have elected a leader. args are
// added to the command line of each.
//
// The servers start at the same time, because a server that finds no others when it starts waits for seconds before it
// tries again to be elected. They know each other by the addresses of relays only, one for each pair and direction, so
// that CutOff can part them.
func StartCluster(tb testing.TB, n int, args ...string) []*Server {
	tb.Helper()
	own := make([]string, n)
	for i := range own {
		own[i] = testserver.FreeAddr(tb)
	}
	links, routes := make([][]*testserver.Relay, n), make([][]string, n)
	for i := range n {
		for j := range n {
			if i == j {
				continue
			}
			link := testserver.NewRelay(tb, own[j], func() (there, back testserver.Side) {
				return testserver.Side{Read: testserver.Chunks()}, testserver.Side{Read: testserver.Chunks()}
			})
			links[i], links[j] = append(links[i], link), append(links[j], link)
			routes[i] = append(routes[i], "nats://"+link.Addr())
		}
	}
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = launch(tb, append([]string{
			"-n", fmt.Sprint("n", i), "--cluster_name", "test", "--cluster", "nats://" + own[i],
			"--routes", strings.Join(routes[i], ","), "--cluster_advertise", nowhere, "--no_advertise",
		}, args...)...)
		servers[i].links = links[i]
	}
	for _, s := range servers {
		s.await()
	}
	return servers
}

// CutOff parts the server from the others of its cluster until back is called. Its clients still reach it.
func (s *Server) CutOff() (back func()) {
	var ups []func()
	for _, link := range s.links {
		ups = append(ups, link.Down())
	}
	return func() {
		for _, up := range ups {
			up()
		}
	}
}
