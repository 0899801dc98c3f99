package redistest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/redistest"
)

func TestSlotsMoveBetweenMasters(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, false)
	slot := c.Slot(t, "{a}")
	from := c.Owner(t, slot)
	to := c.Masters[0]
	if to == from {
		to = c.Masters[1]
	}
	from.Cmd(t, "MSET", "{a}1", 1, "{a}2", 2)
	_, err := to.Do("GET", "{a}1")
	require.ErrorContains(t, err, "MOVED")

	m := c.Move(t, slot, to)
	require.True(t, m.Key())
	_, err = from.Do("MGET", "{a}1", "{a}2")
	// Servers before Redis 7 redirect the client to the other server, which answers TRYAGAIN after ASKING.
	require.Error(t, err, "one key is here, the other is there")
	require.Regexp(t, "^(TRYAGAIN|ASK) ", err.Error())
	_, err = from.Do("GET", "{a}3")
	require.ErrorContains(t, err, "ASK", "what is not here may be there")
	m.Finish()
	assert.Equal(t, []any{"1", "2"}, to.Cmd(t, "MGET", "{a}1", "{a}2"))
	assert.Same(t, to, c.Owner(t, slot))
	for _, s := range c.Masters {
		if s != to {
			_, err = s.Do("GET", "{a}1")
			require.ErrorContains(t, err, "MOVED")
		}
	}
}

// If servers did not agree before the next move, some move would leave a slot that no server has.
func TestSlotsMoveBackAndForth(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, false)
	slot := c.Slot(t, "a")
	for range 200 {
		for _, to := range c.Masters {
			c.Move(t, slot, to).Finish()
			_, err := to.Do("GET", "a")
			require.NoError(t, err)
		}
	}
}

func TestReplicasOfAClusterTakeOver(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, true, "--cluster-node-timeout", "2000")
	assert.Len(t, c.Addrs(), 6)
	slot := c.Slot(t, "{a}")
	old := c.Owner(t, slot)
	old.Cmd(t, "SET", "{a}", 1)
	for i, s := range c.Masters {
		if s == old {
			c.Failover(t, c.Replicas[i])
			for end := time.Now().Add(30 * time.Second); c.Owner(t, slot) != c.Replicas[i] && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond) // for the other servers to hear of it
			}
			assert.Same(t, c.Replicas[i], c.Owner(t, slot))
			assert.Equal(t, "1", c.Replicas[i].Cmd(t, "GET", "{a}"))
		}
	}
	c.Await(t)
}
