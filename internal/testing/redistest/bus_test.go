package redistest_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/redistest"
)

// listener subscribes at one server. It receives the messages that are published there, and at other servers if the bus
// carries them.
type listener struct {
	mu    sync.Mutex
	heard []string
}

func listen(t *testing.T, s *redistest.Server) *listener {
	conn, err := redis.Dial("unix", s.Socket())
	require.NoError(t, err)
	pubsub := redis.PubSubConn{Conn: conn}
	require.NoError(t, pubsub.Subscribe("news"))
	l := &listener{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			switch m := pubsub.Receive().(type) {
			case error:
				return
			case redis.Message:
				l.mu.Lock()
				l.heard = append(l.heard, string(m.Data))
				l.mu.Unlock()
			}
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		wg.Wait()
	})
	return l
}

func (l *listener) knows(news string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.heard, news)
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, 30*time.Second, 5*time.Millisecond, what)
}

func TestBusIsCutBetweenServers(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, false)
	b := c.Bus(t)
	var listeners []*listener
	for _, s := range c.Masters {
		listeners = append(listeners, listen(t, s))
	}
	first, second := c.Masters[0], c.Masters[1]
	// reaches checks that a message published at one server reaches the others. It repeats the message until the bus is
	// connected.
	reaches := func(from *redistest.Server, news string, to ...*listener) {
		t.Helper()
		for _, l := range to {
			eventually(t, news, func() bool {
				from.Cmd(t, "PUBLISH", "news", news)
				return l.knows(news)
			})
		}
	}
	reaches(first, "before", listeners...)
	reaches(second, "before, too", listeners...)

	b.Hold(first, second)
	first.Cmd(t, "PUBLISH", "news", "held")
	eventually(t, "something is held", func() bool { return b.Stopped() > 0 })
	reaches(first, "to one", listeners[2])
	reaches(second, "from the one that hears nothing", listeners...)
	assert.False(t, listeners[1].knows("held"))
	b.Heal()
	eventually(t, "what was held arrives", func() bool { return listeners[1].knows("held") })

	before := b.Stopped()
	b.Refuse(first, second)
	eventually(t, "new connections are refused", func() bool { return b.Stopped() > before+4 })
	first.Cmd(t, "PUBLISH", "news", "lost")
	second.Cmd(t, "PUBLISH", "news", "lost, too")
	reaches(first, "to another", listeners[2])
	reaches(second, "to this one, too", listeners[2])
	b.Heal()
	reaches(first, "after", listeners...)
	reaches(second, "after, too", listeners...)
	assert.False(t, listeners[0].knows("lost, too"))
	assert.False(t, listeners[1].knows("lost"))
	c.Await(t)
}
