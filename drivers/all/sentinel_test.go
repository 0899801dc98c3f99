package all_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
)

// sentinel describes the deployment that sentinels manage.
func sentinel(sentinels ...*redistest.Server) drivers.Config {
	s := &drivers.Sentinel{Master: redistest.SentinelMaster}
	for _, each := range sentinels {
		s.Addrs = append(s.Addrs, each.Addr())
	}
	return drivers.Config{Sentinel: s}
}

// answers reports whether the server that answers a driver is s.
func answers(d drivers.Driver, s *redistest.Server) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	replies, err := d.Do(ctx, drivers.Command{"INFO", "server"})
	_, port, _ := net.SplitHostPort(s.Addr())
	return err == nil && strings.Contains(fmt.Sprint(replies), "tcp_port:"+port+"\r")
}

// Drivers find the master by its sentinels, and follow it: when it is dead, when it hands over in good order, and when
// it hangs or is cut off from the sentinels, so that nobody closes the connections to it.
func TestDriversFollowTheMaster(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{redistest.Start(t, "--repl-diskless-sync-delay", "0")}
	for range 2 {
		servers = append(servers, redistest.StartReplica(t, servers[0]))
	}
	sentinels := redistest.StartSentinels(t, 3, 300*time.Millisecond, servers[0], servers[1:]...)
	opened := map[string]drivers.Driver{}
	for _, name := range drivers.Reaching(drivers.SentinelMaster) {
		d, err := drivers.Open(t.Context(), name, sentinel(sentinels...))
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, d.Close()) })
		opened[name] = d
	}
	assert.GreaterOrEqual(t, len(opened), 2)
	master := servers[0]
	everyone := func(why string) {
		t.Helper()
		for name, d := range opened {
			assert.Eventually(t, func() bool { return answers(d, master) }, time.Minute, 5*time.Millisecond,
				"%s: %s", name, why)
		}
	}
	everyone("at first")
	for _, failure := range short.Part(t, 2, []struct {
		what string
		fail func() // more than once
	}{
		{"was killed", func() { master.Kill() }},
		{"handed over", func() { _, _ = sentinels[0].Do("SENTINEL", "FAILOVER", redistest.SentinelMaster) }},
		{"hung", func() { master.Pause() }},
	}) {
		former := master
		promoted := func() bool {
			for _, s := range servers {
				if s != former && s.IsMaster() {
					master = s
				}
			}
			return master != former
		}
		// A sentinel gives up a hand-over if no replica seems fit.
		for tries := 0; master == former; tries++ {
			require.Less(t, tries, 6, "no server was promoted after the master %s", failure.what)
			failure.fail()
			assert.Eventually(new(assert.CollectT), promoted, 10*time.Second, 5*time.Millisecond)
		}
		everyone("after the master " + failure.what)
	}
}
