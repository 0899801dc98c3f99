package sentinel_test

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/golocker/locker/drivers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startMaster accepts connections and says nothing.
func startMaster(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func dialerTo(t *testing.T, sentinels ...*fakeSentinel) *drivers.Dialer {
	s := &drivers.Sentinel{Master: "m"}
	for _, each := range sentinels {
		s.Addrs = append(s.Addrs, each.Addr().String())
	}
	d := drivers.NewDialer(drivers.Config{Sentinel: s})
	t.Cleanup(d.Close)
	return d
}

// dialed returns the address of the server that d connects to.
func dialed(t *testing.T, d *drivers.Dialer) (addr string, conn net.Conn) {
	t.Helper()
	conn, err := d.Dial(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn.RemoteAddr().String(), conn
}

func TestDialerAsksTheSentinels(t *testing.T) {
	master := startMaster(t)
	none, down := startSentinel(t, ""), startSentinel(t, master)
	_ = down.Close()
	d := dialerTo(t, down, none, startSentinel(t, master))
	addr, _ := dialed(t, d)
	assert.Equal(t, master, addr, "one that knows the master is enough")
}

// A sentinel that is cut off from the others names the former master. It must not be believed because it answers first.
func TestDialerBelievesTheNewestConfiguration(t *testing.T) {
	former, master := startMaster(t), startMaster(t)
	stale, current := startSentinel(t, former), startSentinel(t, master)
	stale.set(func() { stale.epoch = 3 })
	current.set(func() { current.epoch = 4 })
	for _, order := range [][]*fakeSentinel{{stale, current, stale}, {current, stale}} {
		addr, _ := dialed(t, dialerTo(t, order...))
		assert.Equal(t, master, addr)
	}
}

func TestDialerDoesNotWaitForASentinelThatHangs(t *testing.T) {
	master := startMaster(t)
	hung := startSentinel(t, master)
	hung.set(func() { hung.silent = true })
	addr, _ := dialed(t, dialerTo(t, hung, startSentinel(t, master)))
	assert.Equal(t, master, addr)
}

func TestDialerSaysWhatIsWrongWithTheSentinels(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s *fakeSentinel)
		want  string
	}{
		"unknown name":   {func(s *fakeSentinel) { s.master = "" }, "knows no master named m"},
		"password":       {func(s *fakeSentinel) { s.password = "x" }, "NOAUTH Authentication required."},
		"not a sentinel": {func(s *fakeSentinel) { s.refusal = "ERR unknown command" }, "is not a sentinel"},
		"down":           {func(s *fakeSentinel) { _ = s.Close() }, "connection refused"},
		"hung":           {func(s *fakeSentinel) { s.silent = true }, "no answer within 50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startSentinel(t, startMaster(t))
			s.set(func() { c.spoil(s) })
			d := drivers.NewDialer(drivers.Config{Sentinel: &drivers.Sentinel{Master: "m", Addrs: []string{s.Addr().String()}},
				Timeout: 50 * time.Millisecond})
			defer d.Close()
			_, err := d.Dial(t.Context())
			require.ErrorIs(t, err, drivers.ErrNotSent)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, s.Addr().String())
		})
	}
}

func TestDialerAuthenticates(t *testing.T) {
	master := startMaster(t)
	s := startSentinel(t, master)
	s.set(func() { s.password = "user secret" })
	c := drivers.Config{Sentinel: &drivers.Sentinel{Master: "m", Addrs: []string{s.Addr().String()}, Username: "user",
		Password: "secret"}, Password: "the master's"}
	d := drivers.NewDialer(c)
	defer d.Close()
	addr, _ := dialed(t, d)
	assert.Equal(t, master, addr)
}

// The connections to a former master are closed, although nobody else closes them. Those to the master stay open.
func TestDialerLeavesAFormerMaster(t *testing.T) {
	former, master := startMaster(t), startMaster(t)
	sentinels := []*fakeSentinel{startSentinel(t, former), startSentinel(t, former), startSentinel(t, former)}
	d := dialerTo(t, sentinels...)
	_, before := dialed(t, d)
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(sentinels, func(s *fakeSentinel) (heard bool) {
			s.set(func() { heard = len(s.subscribers) > 0 })
			return heard
		})
	}, 10*time.Second, time.Millisecond, "it listens to a sentinel")
	for _, s := range sentinels {
		s.tell(master, 1)
	}
	require.NoError(t, before.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err := before.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	addr, after := dialed(t, d)
	assert.Equal(t, master, addr)

	for _, s := range sentinels {
		s.tell(master, 2)
	}
	_, _ = dialed(t, d)
	require.NoError(t, after.SetReadDeadline(time.Time{}), "it is open")
}

// The sentinel that tells of a new master answers late, and those that answer first have not heard of it. It must not
// be forgotten: the connection to the former master may stay open.
func TestDialerRemembersTheNews(t *testing.T) {
	former, master := startMaster(t), startMaster(t)
	sentinels := []*fakeSentinel{startSentinel(t, former), startSentinel(t, former)}
	d := dialerTo(t, sentinels...)
	_, before := dialed(t, d)
	teller := -1
	require.Eventually(t, func() bool {
		teller = slices.IndexFunc(sentinels, func(s *fakeSentinel) (heard bool) {
			s.set(func() { heard = len(s.subscribers) > 0 })
			return heard
		})
		return teller >= 0
	}, 10*time.Second, time.Millisecond, "it listens to a sentinel")
	sentinels[teller].set(func() { sentinels[teller].late = 2 })
	sentinels[teller].tell(master, 1)
	require.NoError(t, before.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err := before.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	addr, _ := dialed(t, d)
	assert.Equal(t, master, addr)
}

func TestDialerAfterClose(t *testing.T) {
	s := startSentinel(t, startMaster(t))
	s.set(func() { s.silent = true })
	d := dialerTo(t, s)
	waiting := make(chan error, 1)
	go func() {
		_, err := d.Dial(context.Background())
		waiting <- err
	}()
	require.Eventually(t, func() bool {
		var asked bool
		s.set(func() { asked = s.asked })
		return asked
	}, 10*time.Second, time.Millisecond)
	d.Close()
	require.Error(t, <-waiting)
	_, err := d.Dial(t.Context())
	require.ErrorIs(t, err, drivers.ErrClosed)
	require.ErrorIs(t, err, drivers.ErrNotSent)
}
